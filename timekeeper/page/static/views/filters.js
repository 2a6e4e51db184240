/** The filters that hold for the whole board, kept in the address. */

import { GROUPS, MEASURES, WINDOWS, go } from "../lib/address.js";
import { element } from "../lib/dom.js";

export class FiltersView {
  /** Builds the controls; `refresh` asks for everything anew. */
  constructor(form, refresh) {
    this.names = element("datalist", { id: "namespaces" });
    this.namespace = element("input", {
      list: "namespaces", id: "ns", placeholder: "All that you may see", autocomplete: "off", autocapitalize: "off",
      spellcheck: "false", pattern: "[a-z0-9]([-a-z0-9]*[a-z0-9])?", maxlength: "63",
      onchange: () => this.namespace.reportValidity() && go({ ns: this.namespace.value.trim(), page: "1", budget: "" }),
    });
    this.window = this.select("window", WINDOWS);
    this.by = this.select("by", GROUPS);
    this.measure = this.select("measure", MEASURES);
    this.updated = element("span", { class: "hint" });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.replaceChildren(
      field("ns", "Namespace", this.namespace, this.names),
      field("window", "Usage over", this.window),
      field("by", "Grouped by", this.by),
      field("measure", "Measure", this.measure),
      element("div", { class: "refresh" }, element("button", { type: "button", onclick: refresh }, "Refresh"), this.updated),
    );
  }

  select(name, choices) {
    return element("select", { id: name, onchange: (event) => go({ [name]: event.target.value }) },
      Object.entries(choices).map(([value, text]) => element("option", { value }, text)));
  }

  /** Shows the filters as they are now. */
  show(filters) {
    this.namespace.value = filters.ns;
    for (const name of ["window", "by", "measure"]) {
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

function field(id, name, ...controls) {
  return element("div", { class: "field" }, element("label", { for: id }, name), controls);
}
