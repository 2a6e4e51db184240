/** What the present month comes to, if pods go on as in the last day. */

import { GROUPS } from "../lib/address.js";
import { element } from "../lib/dom.js";
import { money, number, utcDate } from "../lib/format.js";
import { expected } from "../lib/series.js";
import { Panel } from "./panel.js";

const MOST = 10;

export class ExpectedView {
  constructor(section) {
    this.panel = new Panel(section, "Expected this month");
  }

  /** Shows the items of a usage answer with its forecast, the most expected first. */
  show({ items, forecast, currency }, by) {
    if (items.length === 0) {
      this.panel.empty("Nothing was used this month.");
      return;
    }
    if (forecast.lastDay === null) {
      this.panel.empty("It is not known now.", "A forecast takes ten minutes of metering, and a timekeeper that leads.");
      return;
    }
    const rows = expected(items);
    const worth = currency === null ? [] : [(row) => money(row.cost, currency.code)];
    const cells = [(row) => number(row.billed), (row) => number(row.byDay), (row) => number(row.byHour), ...worth];
    const head = [GROUPS[by] ?? by, "GPU-h so far", "GPU-h expected", "At the last hour's pace",
      ...(currency === null ? [] : ["Cost expected"])];
    this.panel.show(
      element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "What the month comes to" },
        element("table", { class: "pods" },
          element("thead", {}, element("tr", {}, head.map((text) => element("th", { scope: "col" }, text)))),
          element("tbody", {}, rows.slice(0, MOST).map((row) => element("tr", {},
            element("th", { scope: "row" }, row.name), cells.map((cell) => element("td", {}, cell(row)))))))),
      element("p", { class: "hint" }, notes(rows.length, forecast)));
  }
}

function notes(count, { end, lastDay, notSettled }) {
  const more = count > MOST ? `The ${MOST} with the most of ${count}. ` : "";
  const hours = Math.round((Date.parse(lastDay.end) - Date.parse(lastDay.start)) / 3_600_000);
  const measured = hours > 0 ? `the last ${hours === 1 ? "hour" : `${hours} hours`}` : "the minutes since metering began";
  const failing = notSettled.length > 0
    ? ` Not known for what is billed to ${notSettled.join(", ")}: the settlement fails, and it counts as billed so far.` : "";
  return `${more}By ${utcDate(Date.parse(end))}, 00:00 UTC, if pods go on as in ${measured}. What ended meanwhile counts as if it went on, and no budget limits it.${failing}`;
}
