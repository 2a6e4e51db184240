/** Which budgets a table shows, and in which order: by search, status, column and page. */

import { URGENCY, outlook } from "./forecast.js";

/** The statuses of budgets that have nothing left. */
export const EXHAUSTED = ["grace", "over", "held"];

/** The budgets with their outlook at an instant. */
export function withOutlook(budgets, now) {
  return budgets.map((budget) => ({ budget, outlook: outlook(budget, now) }));
}

/** Those that a search and a status leave, in order. Words of a search may be parts of names of budgets or namespaces. */
export function chosen(rows, { q, state, sort }) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const left = rows.filter((row) => fits(row.outlook.status, state) && words.every((word) => names(row).includes(word)));
  const column = sort.replace(/^-/, "");
  const sign = sort.startsWith("-") ? -1 : 1;
  return left.sort((a, b) => sign * compare(ORDERS[column](a), ORDERS[column](b)) || compare(a.budget.name, b.budget.name));
}

/** One page of a list, and how many there are; a page behind the last one is the last. */
export function paged(rows, page, size) {
  const count = Math.max(1, Math.ceil(rows.length / size));
  const at = Math.min(Math.max(1, page), count);
  return { rows: rows.slice((at - 1) * size, at * size), page: at, count, first: (at - 1) * size + 1 };
}

const ORDERS = {
  name: ({ budget }) => budget.name,
  status: ({ outlook }) => URGENCY.indexOf(outlook.status) - Math.min(0.99, (outlook.forecastShare ?? 0) / 1e6),
  share: ({ outlook }) => outlook.share ?? -1,
  spent: ({ budget }) => budget.spent.gpuHours,
  remaining: ({ budget }) => budget.remaining?.gpuHours ?? Infinity,
  rate: ({ budget }) => budget.rate.gpus,
  runsOut: ({ outlook }) => outlook.runsOutAt ?? (outlook.share >= 1 ? 0 : Infinity),
};

function fits(status, state) {
  return state === "" || state === status || (state === "exhausted" && EXHAUSTED.includes(status));
}

function names({ budget }) {
  return [budget.name, ...budget.namespaces].join(" ").toLowerCase();
}

function compare(a, b) {
  if (typeof a === "string") return a.localeCompare(b, undefined, { numeric: true });
  return a === b ? 0 : a < b ? -1 : 1;
}
