/** The board at a glance: what is spent, what runs, and how many budgets want attention. */

import { link } from "../lib/address.js";
import { EXHAUSTED } from "../lib/budget_rows.js";
import { element, styled } from "../lib/dom.js";
import { number, percent } from "../lib/format.js";

/** Shows the sums of some budgets, each with its outlook. */
export function showTotals(section, rows) {
  const limited = rows.filter(({ budget }) => budget.available !== null);
  const spent = sum(limited, ({ budget }) => budget.spent.gpuHours);
  const available = sum(limited, ({ budget }) => budget.available.gpuHours);
  const forecast = sum(limited, ({ outlook }) => outlook.forecast);
  const gpus = sum(rows, ({ budget }) => budget.rate.gpus);
  const count = (...statuses) => rows.filter(({ outlook }) => statuses.includes(outlook.status)).length;
  section.replaceChildren(
    tile("Spent", `${number(spent)} GPU-h`, available ? `${percent(spent, available)} of ${number(available)}` : "no limits",
      gauge(spent, available)),
    tile("Forecast", `${number(forecast)} GPU-h`,
      available ? `${percent(forecast, available)} at the end of the periods` : "at the present rate",
      gauge(forecast, available, "forecast")),
    tile("Reserved now", `${number(gpus)} GPUs`, "by running pods"),
    counted("Running out", count("short"), "before their period ends", "short"),
    counted("Exhausted", count(...EXHAUSTED), "in grace, over or held", "exhausted"),
  );
}

function tile(name, value, note, extra = null) {
  return element("div", { class: "tile" }, element("p", { class: "name" }, name),
    element("p", { class: "value" }, value), element("p", { class: "note" }, note), extra);
}

function counted(name, count, note, status) {
  const one = count === 1 ? "budget" : "budgets";
  const made = tile(name, `${count} ${one}`, note);
  if (count === 0) return made;
  made.classList.add(status);
  made.append(element("a", {
    class: "more", href: link({ state: status, page: "1" }), "aria-label": `Show budgets that are ${name.toLowerCase()}`,
  }, "Show"));
  return made;
}

function gauge(part, all, kind = "spent") {
  const share = all > 0 ? Math.max(0, Math.min(1, part / all)) : 0;
  return element("span", { class: "gauge", "aria-hidden": "true" },
    styled(element("i", { class: kind }), { width: `${100 * share}%` }));
}

function sum(rows, of) {
  return rows.reduce((total, row) => total + of(row), 0);
}
