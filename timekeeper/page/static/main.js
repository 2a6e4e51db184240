/** The page: signs in, follows the filters in the address, and asks for figures anew while somebody looks. */

import { current } from "./lib/address.js";
import { get } from "./lib/api.js";
import { withOutlook } from "./lib/budget_rows.js";
import * as data from "./lib/data.js";
import { byId } from "./lib/dom.js";
import { startTheme } from "./lib/theme.js";
import { token } from "./lib/token.js";
import { BudgetsView } from "./views/budgets.js";
import { FiltersView } from "./views/filters.js";
import { ask, startSignIn, welcome } from "./views/sign_in.js";
import { showTotals } from "./views/totals.js";

const REFRESH_MS = 30_000;

const filtersView = new FiltersView(byId("filters"), () => load());
const budgetsView = new BudgetsView(byId("budgets"));

let access = null;
let rows = null;
let shownScope = null;
let loading = new AbortController();

async function enter() {
  budgetsView.panel.wait(8);
  byId("sign-in").hidden = true;
  byId("board").hidden = false;
  const mayReadAll = current().ns === "" ? data.budgets(null).catch(() => null) : null;
  try {
    access = await get("v1/access");
  } catch (problem) {
    if (problem.status !== 401) budgetsView.panel.fail(problem, enter);
    return;
  }
  welcome(access.name);
  await load(access.readsAll ? mayReadAll : null);
}

async function load(early = null) {
  loading.abort();
  loading = new AbortController();
  const { signal } = loading;
  const filters = current();
  const namespaces = data.scope(access, filters.ns);
  shownScope = filters.ns;
  budgetsView.panel.wait(8);
  try {
    const found = (await early) ?? (await data.budgets(namespaces, signal));
    rows = withOutlook(found, Date.now());
  } catch (problem) {
    if (problem.name !== "AbortError" && problem.status !== 401) budgetsView.panel.fail(problem, () => load());
    return;
  }
  filtersView.offer(access.readsAll ? [...new Set(rows.flatMap(({ budget }) => budget.namespaces))].sort() : access.namespaces);
  filtersView.note(Date.now());
  draw();
}

function draw() {
  const filters = current();
  filtersView.show(filters);
  if (rows === null) return;
  const nowhere = data.scope(access, filters.ns)?.length === 0;
  showTotals(byId("totals"), rows);
  budgetsView.show(rows, filters, Date.now(), nowhere);
  if (rows.length > 0) markPainted();
}

function follow() {
  if (access === null) return;
  if (current().ns !== shownScope) load();
  else draw();
}

let painted = false;
function markPainted() {
  if (painted) return;
  painted = true;
  requestAnimationFrame(() => setTimeout(() => performance.mark("first-budgets-painted")));
}

startTheme(byId("theme"));
startSignIn(enter);
addEventListener("filters", follow);
addEventListener("popstate", follow);
addEventListener("unauthenticated", ({ detail }) => {
  loading.abort();
  access = rows = null;
  ask(`The token is not accepted: ${detail}.`);
});
document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href^='?'], a[href='/']");
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  history.pushState(null, "", anchor.getAttribute("href"));
  dispatchEvent(new CustomEvent("filters"));
});
setInterval(() => {
  if (!document.hidden && access !== null) load();
}, REFRESH_MS);
filtersView.show(current());
if (token()) enter();
else ask("");

