/** One budget in detail: what is left over the period, where it leads, and the figures behind it. */

import { current, link } from "../lib/address.js";
import { element } from "../lib/dom.js";
import { budgetName, hours, moment, number, span } from "../lib/format.js";
import { left } from "../lib/forecast.js";
import { badge } from "./budgets.js";
import { figure } from "./figure.js";
import { Panel } from "./panel.js";

export class BurnDownView {
  constructor(section) {
    this.section = section;
    this.close = element("a", { class: "button" }, "Close");
    this.panel = new Panel(section, "", this.close);
  }

  /** Hides it. */
  hide() {
    this.section.hidden = true;
    this.panel.filled = false;
  }

  /** Waits for the history of a budget. */
  wait({ budget }) {
    this.section.hidden = false;
    this.panel.title.textContent = `${budgetName(budget)}: what is left`;
    this.close.href = link({ budget: "" });
    this.close.hidden = current().budget === "";
    this.panel.wait();
  }

  /** Shows a budget with the usage items of its period so far; without them (null), what its figures alone show. */
  show({ budget, outlook }, items, now) {
    const facts = details(budget, outlook, now);
    if (budget.available === null) {
      this.panel.show(facts);
      return;
    }
    const course = left(budget, items ?? [], now);
    this.panel.show(element("div", { class: "detail" }, chart(budget, course, now), facts));
  }
}

function chart(budget, course, now) {
  const rows = course.times.map((time, index) => ({ time, left: course.left[index], pace: course.pace[index], ahead: course.ahead[index] }));
  const known = (value) => (value === null ? "" : number(value));
  return figure({
    label: `${number(budget.remaining.gpuHours)} of ${number(budget.available.gpuHours)} GPU-hours are left.`,
    count: rows.length,
    draw: (charts, host, at) => charts.lines(host, {
      times: course.times.map((time) => time / 1000), now: now / 1000, at,
      series: [
        { name: "Even pace", colour: "--edge", values: course.pace, thin: true, dashed: true },
        { name: "Forecast", colour: "--warn", values: course.ahead, dashed: true },
        { name: "Left", colour: "--spent", values: course.left, filled: "--wash" },
      ],
    }),
    legend: (index) => [
      { colour: "--spent", name: index === null ? "Left" : `Left on ${moment(rows[index].time)}`, text: index === null ? number(budget.remaining.gpuHours) : known(rows[index].left) },
      { colour: "--warn", name: "Forecast", text: index === null ? known(rows.at(-1).ahead) : known(rows[index].ahead), dashed: true },
      { colour: "--edge", name: "Even pace", text: index === null ? "" : known(rows[index].pace), dashed: true },
    ],
    say: (index) => `${moment(rows[index].time)}: ${rows[index].left === null ? `forecast ${known(rows[index].ahead)}` : `${known(rows[index].left)} left`}, even pace ${known(rows[index].pace)}`,
    head: ["Time", "Left (GPU-h)", "Forecast (GPU-h)", "Even pace (GPU-h)"],
    rows: () => rows.map((row) => [moment(row.time), known(row.left), known(row.ahead), known(row.pace)]),
  });
}

function details(budget, outlook, now) {
  const { lastHour, lastDay } = budget.forecast ?? {};
  const rows = [
    ["Status", badge(outlook.status)],
    ["Spent", `${hours(budget.spent)} GPU-h${cost(budget, "spent")}`],
    ["Remaining", `${hours(budget.remaining)}${budget.remaining ? " GPU-h" : ""}${cost(budget, "remaining")}`],
    ["Granted", budget.granted.gpuHours === 0 ? null : `${hours(budget.granted)} GPU-h on top of the allowance`],
    ["Expiring", (budget.expiring ?? []).map(({ grant, remaining, expires }) => `${hours(remaining)} GPU-h of ${grant} until ${moment(expires)}`).join("; ") || null],
    ["Committed", budget.admission === "safe" ? `${hours(budget.committed)} GPU-h to admitted pods` : null],
    ["Reserved now", `${number(budget.rate.gpus)} GPUs`],
    ["Last hour", stretch(lastHour, now)],
    ["Last day", stretch(lastDay, now)],
    ["Period", `${moment(outlook.start)} to ${moment(outlook.end)}`],
    ["Enforcement", enforcement(budget)],
    ["Namespaces", budget.namespaces.join(", ") || null],
  ];
  return element("dl", { class: "facts" }, rows.filter(([, value]) => value)
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function stretch(found, now) {
  if (!found) return null;
  const ends = found.exhaustion === null ? "lasts" : `runs out in ${span(Date.parse(found.exhaustion) - now)}`;
  return `${number(found.rate.gpus)} GPUs: ${ends}`;
}

function enforcement(budget) {
  if (budget.enforcement !== "observe") return null;
  return `observed only; enforced it would be ${budget.computedState ?? budget.state}`;
}

function cost(budget, name) {
  if (!budget.costs || budget.costs[name] === null) return "";
  const shown = new Intl.NumberFormat(undefined, { style: "currency", currency: budget.currency.code }).format(budget.costs[name]);
  return ` (${shown})`;
}
