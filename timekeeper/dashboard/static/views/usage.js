/** Usage over time, stacked by team or whatever the filters group it by. */

import { GROUPS, MEASURES, WINDOWS, daysOf, go } from "../lib/address.js";
import { table } from "../lib/api.js";
import { announce, element } from "../lib/dom.js";
import { money, number, percent, stepName, utcDate } from "../lib/format.js";
import { stack } from "../lib/series.js";
import { figure } from "./figure.js";
import { Panel } from "./panel.js";

export class UsageView {
  constructor(section) {
    this.idle = element("input", { type: "checkbox", id: "idle", onchange: () => go({ idle: this.idle.checked ? "1" : "" }) });
    this.idleChoice = element("label", { class: "check", for: "idle" }, this.idle, " Idle capacity");
    this.csv = element("button", { type: "button", onclick: () => this.save() }, "Download CSV");
    this.panel = new Panel(section, "Usage over time", element("div", { class: "tools" }, this.idleChoice, this.csv));
    this.paths = [];
  }

  /** Shows an answer to the question that the filters ask. */
  show(answer, filters, query, paths, mayReadAll) {
    this.query = query;
    this.paths = paths;
    this.idle.checked = filters.idle === "1";
    this.idleChoice.hidden = !mayReadAll || filters.ns !== "";
    this.panel.title.textContent = `Usage by ${inSentence(GROUPS[filters.by] ?? filters.by)}, ${windowName(filters.window)}`;
    this.csv.disabled = answer.items.length === 0;
    if (answer.items.length === 0) {
      this.panel.empty("Nothing was used in this time.", "Choose a longer one under “Usage over”.");
      return;
    }
    if (filters.measure === "cost" && answer.currency === null) {
      this.panel.empty("No currency is set.", "An administrator names one, and what a GPU-hour costs, in the settings.");
      return;
    }
    this.panel.show(chart(answer, filters, query.step));
  }

  async save() {
    for (const path of this.paths) {
      try {
        const text = await table(path, { ...this.query, format: "csv", limit: 10_000 });
        const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
        const name = `fairgpu-${path.split("/")[2] === "namespaces" ? `${path.split("/")[3]}-` : ""}usage.csv`;
        element("a", { href: address, download: name }).click();
        URL.revokeObjectURL(address);
      } catch (problem) {
        this.panel.fail(problem, () => this.save());
        return;
      }
    }
    announce("Saved as CSV");
  }
}

function chart({ items, currency }, filters, step) {
  const { starts, ends, series, all } = stack(items, filters.measure);
  const shown = (value) => (filters.measure === "cost" ? money(value, currency.code) : number(value));
  const unit = filters.measure === "cost" ? "" : " GPU-h";
  const total = all.reduce((sum, one) => sum + one.total, 0);
  const heading = (index) => (index === null ? "Whole time" : stepName(starts[index], step));
  const sumAt = (index) => all.reduce((sum, one) => sum + one.values[index], 0);
  return figure({
    label: `${MEASURES[filters.measure]}: ${shown(total)}${unit}; most by ${series[0].name} with ${percent(series[0].total, total)}.`,
    count: starts.length,
    draw: (charts, host, at) => charts.stackedBars(host, {
      times: starts.map((start) => start / 1000), ends: ends / 1000, series, at,
    }),
    legend: (index) => [
      { sum: true, colour: "--text", name: heading(index), text: `${shown(index === null ? total : sumAt(index))}${unit}` },
      ...series.map((one) => ({
        colour: one.colour, name: one.name, text: shown(index === null ? one.total : one.values[index]),
      })),
    ],
    say: (index) => `${heading(index)}: ${shown(sumAt(index))}${unit}. `
      + [...series].sort((a, b) => b.values[index] - a.values[index]).slice(0, 3)
        .map((one) => `${one.name} ${shown(one.values[index])}`).join(", "),
    head: [`Step (UTC)`, ...all.map((one) => one.name), "Sum"],
    rows: () => starts.map((start, index) => [
      stepName(start, step), ...all.map((one) => shown(one.values[index])), shown(sumAt(index)),
    ]),
  });
}

function inSentence(name) {
  return name.replace(/^[A-Z](?=[a-z])/, (letter) => letter.toLowerCase());
}

function windowName(window) {
  const days = daysOf(window);
  return days ? days.map((day) => utcDate(Date.parse(day))).join(" to ") : (WINDOWS[window] ?? window).toLowerCase();
}
