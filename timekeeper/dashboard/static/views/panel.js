/** A part of the board that waits, fails, is empty, or shows something; what was shown stays while it is asked anew. */

import { element } from "../lib/dom.js";

export class Panel {
  /** Builds the head of a section: a title, and what stands beside it. */
  constructor(section, title, ...beside) {
    this.section = section;
    this.title = element("h2", { id: `${section.id}-title` }, title);
    this.body = element("div", { class: "body" });
    section.replaceChildren(element("header", {}, this.title, ...beside), this.body);
    this.filled = false;
    this.reading = false;
  }

  /** Waits; a first time with a place held for what will come. */
  wait(lines = 5) {
    this.section.setAttribute("aria-busy", "true");
    if (this.filled) return;
    const bars = Array.from({ length: lines }, () => element("i"));
    this.body.replaceChildren(element("div", { class: "skeleton", "aria-hidden": "true" }, bars));
  }

  /** Shows something; figures that were read as a table come as a table again, also after there were none. */
  show(...nodes) {
    this.section.removeAttribute("aria-busy");
    this.filled = true;
    this.reading = this.body.querySelector(".as-table")?.open ?? this.reading;
    this.body.replaceChildren(...nodes);
    for (const table of this.body.querySelectorAll(".as-table")) table.open = this.reading;
  }

  /** Says that there is nothing, and what that means. */
  empty(title, ...explained) {
    this.show(element("div", { class: "nothing" }, element("p", { class: "lead" }, title),
      explained.map((text) => element("p", {}, text))));
  }

  /** Says what went wrong, with a way to try again. */
  fail(problem, again) {
    const retry = element("button", { type: "button", onclick: again }, "Try again");
    const text = problem.status === 403 ? "Your token may not read this" : problem.title ?? "This did not work";
    this.show(element("div", { class: "nothing bad" }, element("p", { class: "lead" }, text),
      element("p", {}, problem.message), problem.status === 403 ? null : retry));
    this.filled = false;
  }
}
