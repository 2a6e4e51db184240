/** Waste: what was reserved, and what of it was used. */

import { element, styled } from "../lib/dom.js";
import { number, percent } from "../lib/format.js";
import { waste } from "../lib/series.js";
import { Panel } from "./panel.js";

const MOST = 8;

export class WasteView {
  constructor(section) {
    this.panel = new Panel(section, "Waste: reserved and not used");
  }

  /** Shows the items of a usage answer. */
  show({ items }) {
    const { rows, silent } = waste(items);
    if (rows.length === 0) {
      this.panel.empty("No pod reported what it used.",
        "Pods report through their sidecar; until they do, only what they reserve is known.");
      return;
    }
    const reserved = rows.reduce((sum, row) => sum + row.reserved, 0);
    const used = rows.reduce((sum, row) => sum + row.used, 0);
    const largest = Math.max(...rows.map((row) => row.reserved));
    this.panel.show(
      element("p", {}, element("strong", {}, `${number(Math.max(0, reserved - used))} GPU-h`),
        ` were reserved and not used: ${percent(Math.max(0, reserved - used), reserved)} of ${number(reserved)}.`),
      element("ul", { class: "waste" }, rows.slice(0, MOST).map((row) => line(row, largest))),
      element("p", { class: "hint" }, notes(rows.length, silent)));
  }
}

function line(row, largest) {
  const share = row.reserved > 0 ? Math.min(1, row.used / row.reserved) : 0;
  const text = `${number(row.used)} of ${number(row.reserved)} GPU-h used, ${number(row.wasted)} not`;
  return element("li", {},
    element("span", { class: "name", title: row.name }, row.name),
    element("span", { class: "text" }, `${percent(row.used, row.reserved) || "0 %"} used`),
    styled(element("span", { class: "bar", role: "img", "aria-label": text, title: text },
      styled(element("i", { class: "spent" }), { width: `${100 * share}%` })), { width: `${100 * row.reserved / largest}%` }),
    element("small", {}, `${number(row.wasted)} GPU-h unused of ${number(row.reserved)}`));
}

function notes(count, silent) {
  const more = count > MOST ? `The ${MOST} with the most unused of ${count}. ` : "";
  return silent > 0 ? `${more}${silent} more reported nothing and are not counted.` : more;
}
