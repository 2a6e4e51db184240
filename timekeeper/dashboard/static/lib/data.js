/** What the board shows, asked for within what the token may read. */

import { get, pages } from "./api.js";
import { joined } from "./series.js";

const PAGE = 1000;
const USAGE_PAGE = 10_000;
const MOST_NAMESPACES = 20;
const HOUR_MS = 3_600_000;
const STEPS = { today: "1h", yesterday: "1h", "24h": "1h", "7d": "1d", "30d": "1d", month: "1d", lastmonth: "1d" };

/** Whose figures are asked for: one namespace, those that the token may read, or (null) all of them. */
export function scope(access, namespace) {
  if (namespace) return [namespace];
  return access.readsAll ? null : access.namespaces;
}

/** The budgets of a scope, each once. */
export async function budgets(namespaces, signal) {
  if (namespaces === null) return pages("v1/budgets", "budgets", { limit: PAGE }, signal);
  const answers = await Promise.all(namespaces.map((name) => get(`${at(name)}/budget`, {}, signal)));
  const found = answers.filter((answer) => answer.budget !== null).map((answer) => answer.budget);
  return [...new Map(found.map((budget) => [budget.name, budget])).values()];
}

/** The question that the filters ask of usage. */
export function usageQuery({ window, by, idle, ns }) {
  const query = { window, step: STEPS[window] ?? stepOf(window), aggregate: by };
  return idle && !ns ? { ...query, idle: "true" } : query;
}

/** Where that is asked, for a scope. */
export function usagePaths(namespaces) {
  return namespaces === null ? ["v1/usage"] : namespaces.map((name) => `${at(name)}/usage`);
}

/** The question that asks what the present month comes to, for a group of the filters. */
export function expectedQuery({ by }) {
  return { window: "month", aggregate: by, forecast: "month" };
}

/** Usage as a list of items, with the currency, and the forecast where one was asked for. */
export async function usage(paths, query, signal) {
  const answers = await Promise.all(paths.map((path) => wholeUsage(path, query, signal)));
  return {
    currency: answers.find((answer) => answer.currency)?.currency ?? null,
    forecast: joined(answers.map((answer) => answer.forecast)),
    items: answers.flatMap((answer) => answer.items),
  };
}

/** What a budget was billed in its period so far, step by step; null where that cannot be had for so many namespaces. */
export async function history(budget, namespaces, now, signal) {
  const start = Date.parse(budget.period.start);
  const own = namespaces === null ? budget.namespaces : budget.namespaces.filter((name) => namespaces.includes(name));
  if (own.length === 0 || own.length > MOST_NAMESPACES || own.length < budget.namespaces.length) return null;
  const step = now - start <= 49 * HOUR_MS ? "1h" : "1d";
  const window = `${budget.period.start},${new Date(Math.ceil(now / HOUR_MS) * HOUR_MS).toISOString().replace(".000", "")}`;
  const { items } = await usage(usagePaths(own), { window, step, aggregate: "budget" }, signal);
  return items.filter((item) => item.key.budget === budget.name);
}

/** The pods of a scope that have cost the most, up to a number of them. */
export async function dearest(namespaces, limit, signal) {
  const asked = namespaces === null ? [{}] : namespaces.map((namespace) => ({ namespace }));
  const found = await Promise.all(
    asked.map((query) => get("v1/sessions", { ...query, order: "amount", limit }, signal)));
  const sessions = found.flatMap((answer) => answer.sessions);
  return sessions.sort((a, b) => b.amount.gpuHours - a.amount.gpuHours).slice(0, limit);
}

async function wholeUsage(path, query, signal) {
  const whole = await get(path, { ...query, limit: USAGE_PAGE }, signal);
  for (let cursor = whole.next; cursor;) {
    const page = await get(path, { ...query, limit: USAGE_PAGE, cursor }, signal);
    whole.items.push(...page.items);
    cursor = page.next;
  }
  return whole;
}

function at(namespace) {
  return `v1/namespaces/${encodeURIComponent(namespace)}`;
}

/** The step of a window that a person wrote: hours for two days, days for a season, else weeks. */
function stepOf(window) {
  const relative = /^(\d+)([mhd])$/.exec(window);
  const [from, to] = window.split(",").map((text) => Date.parse(text));
  const hours = relative ? relative[1] * { m: 1 / 60, h: 1, d: 24 }[relative[2]] : (to - from) / HOUR_MS;
  return hours <= 48 ? "1h" : hours <= 24 * 100 || Number.isNaN(hours) ? "1d" : "week";
}
