/** What the board shows, asked for within what the token may read. */

import { get, pages } from "./api.js";

const PAGE = 1000;
const MOST_PODS = 5000;

/** Whose figures are asked for: one namespace, those that the token may read, or (null) all of them. */
export function scope(access, namespace) {
  if (namespace) return [namespace];
  return access.readsAll ? null : access.namespaces;
}

/** The budgets of a scope, each once. */
export async function budgets(namespaces, signal) {
  if (namespaces === null) return pages("v1/budgets", "budgets", { limit: PAGE }, signal);
  const answers = await Promise.all(namespaces.map((name) => get(`v1/namespaces/${encodeURIComponent(name)}/budget`, {}, signal)));
  const found = answers.filter((answer) => answer.budget !== null).map((answer) => answer.budget);
  return [...new Map(found.map((budget) => [budget.name, budget])).values()];
}

/** Usage of a scope, as a list of items with the currency; of several namespaces it is what each of them used. */
export async function usage(namespaces, query, signal) {
  if (namespaces === null) return usageAt("v1/usage", query, signal);
  const { idle, ...own } = query;
  const answers = await Promise.all(
    namespaces.map((name) => usageAt(`v1/namespaces/${encodeURIComponent(name)}/usage`, own, signal)));
  return {
    currency: answers.find((answer) => answer.currency)?.currency ?? null,
    window: answers[0]?.window ?? null,
    items: answers.flatMap((answer) => answer.items),
  };
}

/** Pods that hold GPUs in a scope. */
export async function sessions(namespaces, signal) {
  if (namespaces === null) return pages("v1/sessions", "sessions", { limit: PAGE }, signal, MOST_PODS);
  const found = await Promise.all(
    namespaces.map((namespace) => pages("v1/sessions", "sessions", { namespace, limit: PAGE }, signal, MOST_PODS)));
  return found.flat();
}

async function usageAt(path, query, signal) {
  const whole = await get(path, { ...query, limit: PAGE }, signal);
  let cursor = whole.next ?? null;
  while (cursor !== null) {
    const page = await get(path, { ...query, limit: PAGE, cursor }, signal);
    whole.items.push(...page.items);
    cursor = page.next ?? null;
  }
  return whole;
}
