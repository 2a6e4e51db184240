/** The page: signs in, follows the filters in the address, and asks for figures anew while somebody looks. */

import { current } from "./lib/address.js";
import { get } from "./lib/api.js";
import { Part } from "./lib/board.js";
import { withOutlook } from "./lib/budget_rows.js";
import * as data from "./lib/data.js";
import { byId } from "./lib/dom.js";
import { startTheme } from "./lib/theme.js";
import { token } from "./lib/token.js";
import { BudgetsView } from "./views/budgets.js";
import { BurnDownView } from "./views/burn_down.js";
import { ExpectedView } from "./views/expected.js";
import { FiltersView } from "./views/filters.js";
import { MOST_PODS, PodsView } from "./views/pods.js";
import { ask, leave, startSignIn, welcome } from "./views/sign_in.js";
import { showTotals } from "./views/totals.js";
import { UsageView } from "./views/usage.js";
import { WasteView } from "./views/waste.js";

const REFRESH_MS = 60_000;
const EXPECTED_MS = 15 * REFRESH_MS; // what a month comes to changes slowly, and to ask for it costs more than the rest

const filtersView = new FiltersView(byId("filters"), () => loadAll({ keep: true }));
const budgetsView = new BudgetsView(byId("budgets"));
const burnDownView = new BurnDownView(byId("burn-down"));
const usageView = new UsageView(byId("usage"));
const expectedView = new ExpectedView(byId("expected"));
const wasteView = new WasteView(byId("waste"));
const podsView = new PodsView(byId("pods"));

let access = null;
let shown = {};

const scope = () => data.scope(access, current().ns);
const asked = () => JSON.stringify([data.usageQuery(current()), current().ns]);

const budgets = new Part(budgetsView.panel,
  async (signal) => withOutlook(await data.budgets(scope(), signal), Date.now()), showBudgets);

const usage = new Part(usageView.panel, async (signal) => {
  const query = data.usageQuery(current());
  const paths = data.usagePaths(scope());
  return { answer: await data.usage(paths, query, signal), query, paths };
}, ({ answer, query, paths }) => {
  usageView.show(answer, current(), query, paths, access.readsAll);
  wasteView.show(answer);
});

const expected = new Part(expectedView.panel, async (signal) => {
  const answer = await data.usage(data.usagePaths(scope()), data.expectedQuery(current()), signal);
  return { answer, by: current().by, question: expectedQuestion(), at: Date.now() };
}, ({ answer, by }) => expectedView.show(answer, by));

const expectedQuestion = () => JSON.stringify([data.expectedQuery(current()), current().ns]);

const pods = new Part(podsView.panel, (signal) => data.dearest(scope(), MOST_PODS + 1, signal),
  (sessions) => podsView.show(sessions, Date.now()));

const burnDown = new Part(burnDownView.panel, async (signal) => {
  const row = chosenRow();
  const items = await data.history(row.budget, scope(), Date.now(), signal).catch((problem) => {
    if (problem.name === "AbortError") throw problem;
    return null;
  });
  return { row, items };
}, ({ row, items }) => burnDownView.show(row, items, Date.now()));

async function enter() {
  byId("sign-in").hidden = true;
  byId("board").hidden = false;
  budgetsView.panel.wait(8);
  try {
    access = await get("v1/access");
  } catch (problem) {
    if (problem.status !== 401) budgetsView.panel.fail(problem, enter);
    return;
  }
  document.title = "FairGPU budgets";
  welcome(access.name);
  await loadAll();
}

/** Budgets come first: the charts and their library wait until somebody can read something. */
async function loadAll(how = {}) {
  shown = { ns: current().ns, asked: asked(), budget: current().budget };
  filtersView.show(current());
  if (await budgets.load(how)) {
    filtersView.note(Date.now());
    byId("board-notice").hidden = true;
  }
  if (access === null) return;
  const nothing = budgets.refused || scope()?.length === 0;
  byId("rest").hidden = nothing;
  byId("totals").hidden = !budgets.figures?.length;
  if (nothing) return;
  loadUsage(how);
  pods.load(how);
}

async function loadUsage(how = {}) {
  wasteView.panel.wait();
  if (!(await usage.load(how)) && usage.figures === null) wasteView.panel.empty("These figures come with those of usage.");
  await loadExpected(how);
}

/** One question about usage at a time: the timekeeper answers two of a caller at once, and this may be a second tab. */
async function loadExpected(how) {
  const known = expected.figures;
  if (known?.question === expectedQuestion() && Date.now() - known.at < EXPECTED_MS) return;
  await expected.load(how);
}

function showBudgets(rows) {
  const filters = current();
  const nowhere = scope()?.length === 0;
  showTotals(byId("totals"), rows);
  budgetsView.show(rows, filters, Date.now(), nowhere);
  filtersView.offer(access.readsAll ? [...new Set(rows.flatMap(({ budget }) => budget.namespaces))].sort() : access.namespaces);
  if (rows.length > 0) markPainted();
  showChosen();
}

function showChosen() {
  const row = chosenRow();
  if (!row) {
    burnDown.end();
    burnDownView.hide();
    return;
  }
  burnDownView.wait(row);
  burnDown.load();
}

/** The budget that is open: the one in the address, or the only one that there is. */
function chosenRow() {
  const { budget } = current();
  const rows = budgets.figures ?? [];
  return budget === "" && rows.length === 1 ? rows[0] : rows.find((row) => row.budget.name === budget);
}

/** The address has changed: asks for what it needs, and draws the rest from what is there. */
function follow() {
  if (access === null) return;
  const filters = current();
  const opened = filters.budget !== "" && filters.budget !== shown.budget;
  if (filters.ns !== shown.ns) loadAll();
  else {
    filtersView.show(filters);
    budgets.redraw();
    if (asked() !== shown.asked) loadUsage();
    else usage.redraw();
  }
  shown = { ns: filters.ns, asked: asked(), budget: filters.budget };
  if (opened) byId("burn-down").scrollIntoView({ block: "nearest" });
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
  const reason = `The token is not accepted: ${detail}.`;
  if (access === null) ask(reason);
  else leave(reason);
});
addEventListener("stale", ({ detail }) => {
  byId("board-notice").textContent = `These figures are not up to date: ${detail}`;
  byId("board-notice").hidden = false;
});
document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("#board a[href]");
  if (!anchor || anchor.download || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  history.pushState(null, "", anchor.getAttribute("href"));
  dispatchEvent(new CustomEvent("filters"));
});
setInterval(() => {
  if (!document.hidden && access !== null) loadAll({ keep: true });
}, REFRESH_MS);
filtersView.show(current());
if (token()) enter();
