/** The filters that hold for the whole board, kept in the address. */

import { GROUPS, MEASURES, WINDOWS, daysOf, daysWindow, go } from "../lib/address.js";
import { element } from "../lib/dom.js";

const DAY_MS = 86_400_000;

export class FiltersView {
  /** Builds the controls; `refresh` asks for everything anew. */
  constructor(form, refresh) {
    this.names = element("datalist", { id: "namespaces" });
    this.namespace = element("input", {
      list: "namespaces", id: "ns", placeholder: "All that you may see", autocomplete: "off", autocapitalize: "off",
      spellcheck: "false", pattern: "[a-z0-9]([-a-z0-9]*[a-z0-9])?", maxlength: "63",
      onchange: () => this.namespace.reportValidity() && go({ ns: this.namespace.value.trim(), page: "1", budget: "" }),
    });
    this.window = element("select", { id: "window", onchange: () => this.chooseWindow() }, options({ ...WINDOWS, days: "From day to day" }));
    this.from = this.day("from");
    this.until = this.day("until");
    this.days = [field("from", "From", this.from), field("until", "Until", this.until)];
    this.by = this.select("by", GROUPS);
    this.measure = this.select("measure", MEASURES);
    this.updated = element("span", { class: "hint" });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.replaceChildren(...[
      field("ns", "Namespace", this.namespace, this.names),
      field("window", "Usage over", this.window),
      this.days,
      field("by", "Grouped by", this.by),
      field("measure", "Measure", this.measure),
      element("div", { class: "refresh" }, element("button", { type: "button", onclick: refresh }, "Refresh"), this.updated),
    ].flat());
  }

  select(name, choices) {
    return element("select", { id: name, onchange: (event) => go({ [name]: event.target.value }) }, options(choices));
  }

  day(id) {
    return element("input", { type: "date", id, required: true, onchange: () => this.chooseWindow() });
  }

  /** Goes to the chosen stretch of time; the last day counts. */
  chooseWindow() {
    if (this.window.value !== "days") {
      go({ window: this.window.value });
      return;
    }
    const [from, until] = [this.from, this.until].map((input) => Date.parse(`${input.value}T00:00:00Z`));
    const known = from <= until;
    const today = Math.floor(Date.now() / DAY_MS) * DAY_MS;
    go({ window: daysWindow(known ? from : today - 13 * DAY_MS, known ? until : today) });
  }

  /** Shows the filters as they are now. */
  show(filters) {
    this.namespace.value = filters.ns;
    const days = daysOf(filters.window);
    for (const part of this.days) part.hidden = days === null;
    if (days !== null) [this.from.value, this.until.value] = days;
    for (const name of ["window", "by", "measure"]) {
      if (name === "window" && days !== null) {
        this.window.value = "days";
        continue;
      }
      const select = this[name];
      const known = [...select.options].some((option) => option.value === filters[name]);
      if (!known) select.append(element("option", { value: filters[name] }, filters[name]));
      select.value = filters[name];
    }
  }

  /** Offers namespaces to choose from. */
  offer(namespaces) {
    this.names.replaceChildren(...namespaces.map((name) => element("option", { value: name })));
  }

  /** Notes when the figures came. */
  note(instant) {
    this.updated.textContent = `Figures of ${new Date(instant).toLocaleTimeString()}`;
  }
}

function options(choices) {
  return Object.entries(choices).map(([value, text]) => element("option", { value }, text));
}

function field(id, name, ...controls) {
  return element("div", { class: "field" }, element("label", { for: id }, name), controls);
}
