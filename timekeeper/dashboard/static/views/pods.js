/** The pods that cost the most in their budgets' present periods. */

import { element } from "../lib/dom.js";
import { hours, moment, number, percent, span } from "../lib/format.js";
import { Panel } from "./panel.js";

/** How many are shown. */
export const MOST_PODS = 10;

export class PodsView {
  constructor(section) {
    this.panel = new Panel(section, "Top pods");
  }

  /** Shows running pods, the dearest first; one more than are shown says that there are more. */
  show(sessions, now) {
    if (sessions.length === 0) {
      this.panel.empty("No pod holds a GPU now.");
      return;
    }
    const head = ["Pod", "GPUs", "GPU-h this period", "GPU-h used", "Running"];
    this.panel.show(
      element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Pods and what they cost" },
        element("table", { class: "pods" },
          element("thead", {}, element("tr", {}, head.map((text) => element("th", { scope: "col" }, text)))),
          element("tbody", {}, sessions.slice(0, MOST_PODS).map((session) => line(session, now))))),
      sessions.length > MOST_PODS ? element("p", { class: "hint" }, `The ${MOST_PODS} dearest of those that run now.`) : "");
  }
}

/** What stands in place of reports: how busy another monitor says the GPUs are, if one does. */
function unreported({ presentUse }, now) {
  if (presentUse === null) return element("span", { class: "faint" }, "not reported");
  const source = `by Prometheus, ${span(now - Date.parse(presentUse.at))} ago; advisory, and no part of any bill`;
  return element("span", { class: "faint", title: source }, `not reported; ${percent(presentUse.percent, 100)} busy now`);
}

function line(session, now) {
  return element("tr", {},
    element("th", { scope: "row" }, session.pod, element("small", {}, `${session.namespace} · ${session.node}`)),
    element("td", {}, number(session.rate.gpus)),
    element("td", {}, hours(session.amount)),
    element("td", {}, session.used === null ? unreported(session, now) : hours(session.used)),
    element("td", { title: `since ${moment(session.start)}` }, span(now - Date.parse(session.start))));
}
