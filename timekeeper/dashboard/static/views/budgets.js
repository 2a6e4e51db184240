/** The table of budgets: a bar for each, what is spent, what is left, and whether it lasts. */

import { STATUSES, go, link } from "../lib/address.js";
import { chosen, paged } from "../lib/budget_rows.js";
import { announce, element, styled } from "../lib/dom.js";
import { budgetName, hours, moment, number, percent, span } from "../lib/format.js";
import { Panel } from "./panel.js";

const PAGE_SIZE = 25;
const COLUMNS = [
  ["name", "Budget"], ["status", "Status"], ["share", "Spent and forecast"], ["spent", "Spent"],
  ["remaining", "Remaining"], ["rate", "GPUs now"], ["runsOut", "Outlook"],
];
const FROM_LARGE = new Set(["share", "spent", "rate"]);
const SIGNS = { open: "●", short: "◔", grace: "◑", over: "▲", held: "■", unlimited: "○" };

export class BudgetsView {
  constructor(section) {
    this.search = element("input", {
      type: "search", placeholder: "Search budgets", "aria-label": "Search budgets",
      oninput: () => go({ q: this.search.value, page: "1" }, { replace: true }),
    });
    this.status = element("select", {
      "aria-label": "Status", onchange: () => go({ state: this.status.value, page: "1" }),
    }, element("option", { value: "" }, "Every status"),
    Object.entries(STATUSES).map(([value, name]) => element("option", { value }, name)));
    this.panel = new Panel(section, "Budgets", element("div", { class: "tools" }, this.search, this.status));
    this.announced = "";
  }

  /** Shows the budgets that the filters leave. */
  show(rows, filters, now, nowhere) {
    if (document.activeElement !== this.search) this.search.value = filters.q;
    this.status.value = filters.state;
    if (nowhere) {
      this.panel.empty("Name the namespace that you want to see.",
        "No namespace was found that your token may read. If you know one, write it into the field Namespace above.");
      return;
    }
    if (rows.length === 0) {
      this.panel.empty("There are no budgets here.",
        "An administrator makes one as a GPUBudget. Until then pods run without a limit, and what they use is metered.");
      return;
    }
    const left = chosen(rows, filters);
    const page = paged(left, Number(filters.page), PAGE_SIZE);
    this.say(left.length, rows.length);
    if (left.length === 0) {
      this.panel.show(element("div", { class: "nothing" }, element("p", { class: "lead" }, "No budget fits these filters."),
        element("p", {}, element("a", { href: link({ q: "", state: "", page: "1" }) }, "Show all budgets"))));
      return;
    }
    const focused = document.activeElement?.closest?.("[data-key]")?.dataset.key;
    this.panel.show(table(page.rows, filters, now), element("footer", {}, key(), pager(page, left.length)));
    if (focused) document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  say(left, all) {
    const text = left === all ? "" : `${left} of ${all} budgets`;
    if (text !== this.announced) announce(text);
    this.announced = text;
  }
}

function table(rows, filters, now) {
  const head = COLUMNS.map(([column, name]) => heading(column, name, filters.sort));
  return element("table", { class: "budgets", role: "table" },
    element("caption", { class: "unseen" }, "Budgets in their present periods"),
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, head)),
    element("tbody", { role: "rowgroup" }, rows.map((row) => line(row, filters.budget, now))));
}

function heading(column, name, sort) {
  const by = sort.replace(/^-/, "") === column;
  const down = sort.startsWith("-");
  const first = FROM_LARGE.has(column) ? `-${column}` : column;
  const next = by ? (down ? column : `-${column}`) : first;
  const button = element("button", {
    type: "button", "data-key": `sort-${column}`, onclick: () => go({ sort: next, page: "1" }),
  }, name, element("span", { class: "order", "aria-hidden": "true" }, by ? (down ? " ↓" : " ↑") : ""));
  return element("th", {
    role: "columnheader", scope: "col", class: column, "aria-sort": by ? (down ? "descending" : "ascending") : null,
  }, button);
}

function line({ budget, outlook }, open, now) {
  const cell = (column, name, ...children) =>
    element("td", { role: "cell", class: column, "data-name": name }, ...children);
  const selected = budget.name === open;
  const spaces = budget.namespaces.join(", ");
  const title = element("th", { role: "rowheader", scope: "row", class: "name" },
    element("a", {
      href: link({ budget: selected ? "" : budget.name }), "data-key": `budget-${budget.name}`,
      "aria-expanded": String(selected), "aria-controls": "burn-down",
    }, budgetName(budget)),
    spaces && spaces !== budget.name ? element("small", { title: spaces }, spaces) : null);
  return element("tr", { role: "row", class: selected ? "selected" : null }, title,
    cell("status", "Status", badge(outlook.status), budget.enforcement === "observe" ? element("small", {}, "observed only") : null),
    cell("share", "Spent and forecast", bar(budget, outlook)),
    cell("spent", "Spent", hours(budget.spent), element("small", {}, ofAvailable(budget))),
    cell("remaining", "Remaining", hours(budget.remaining)),
    cell("rate", "GPUs now", number(budget.rate.gpus)),
    cell("runsOut", "Outlook", prospect(budget, outlook, now)));
}

function ofAvailable(budget) {
  return budget.available === null ? "GPU-h" : `of ${number(budget.available.gpuHours)} GPU-h`;
}

/** A status in words, with a sign and a colour beside them. */
export function badge(status) {
  return element("span", { class: `badge ${status}` },
    element("span", { "aria-hidden": "true" }, SIGNS[status] ?? "?"), ` ${STATUSES[status] ?? status}`);
}

function bar(budget, outlook) {
  if (outlook.share === null) return element("span", { class: "faint" }, "No limit");
  const whole = (share) => `${Math.min(100, 100 * Math.max(0, share))}%`;
  const parts = [
    styled(element("i", { class: "forecast" }), { width: whole(outlook.forecastShare) }),
    styled(element("i", { class: outlook.share >= 1 ? "spent full" : "spent" }), { width: whole(outlook.share) }),
    styled(element("i", { class: "elapsed" }), { left: whole(outlook.elapsed) }),
  ];
  const text = `${percent(outlook.share, 1)} spent, ${percent(outlook.forecastShare, 1)} forecast for the end of the period, `
    + `of which ${percent(outlook.elapsed, 1)} is over`;
  return element("span", { class: "meter" },
    element("span", { class: "bar", role: "img", "aria-label": text }, parts),
    element("span", { class: "share" }, percent(outlook.share, 1)));
}

function prospect(budget, outlook, now) {
  if (outlook.share === null) return element("span", { class: "faint" }, "Metered, without a limit");
  const ends = element("small", {}, `Period ends ${moment(outlook.end)}`);
  if (outlook.share >= 1) {
    return [budget.exhaustedAt ? `Spent since ${moment(budget.exhaustedAt)}` : "All spent", ends];
  }
  if (outlook.runsOutAt === null) return [`${percent(outlook.forecastShare, 1)} at the end`, ends];
  return [`Runs out in ${span(outlook.runsOutAt - now)}`, element("small", {}, moment(outlook.runsOutAt))];
}

function key() {
  const entry = (name, text) => element("span", {}, element("i", { class: name }), text);
  return element("p", { class: "key", "aria-hidden": "true" }, entry("spent", "Spent"),
    entry("forecast", "Forecast for the end of the period"), entry("elapsed", "How much of the period is over"));
}

function pager({ page, count, first, rows }, all) {
  const last = first + rows.length - 1;
  const step = (to, name, sign) => element(to < 1 || to > count ? "span" : "a", {
    href: to < 1 || to > count ? null : link({ page: String(to) }), class: "step", "data-key": `page-${name}`,
    "aria-disabled": to < 1 || to > count ? "true" : null, role: to < 1 || to > count ? "link" : null,
  }, sign);
  if (count === 1) return element("p", { class: "pager" }, `${all} ${all === 1 ? "budget" : "budgets"}`);
  return element("nav", { class: "pager", "aria-label": "Pages of budgets" },
    step(page - 1, "previous", "‹ Previous"),
    element("span", {}, `${first} to ${last} of ${all}`),
    step(page + 1, "next", "Next ›"));
}
