/** The filters, as they stand in the address: what is shared by sending a link, and what the back button goes through. */

export const WINDOWS = {
  today: "Today",
  yesterday: "Yesterday",
  "24h": "Last 24 hours",
  "7d": "Last 7 days",
  "30d": "Last 30 days",
  month: "This month",
  lastmonth: "Last month",
};
export const GROUPS = {
  namespace: "Namespace",
  budget: "Budget",
  model: "GPU model",
  owner: "Workload",
  user: "User",
  node: "Node",
};
export const MEASURES = { billed: "Billed", core: "Core", memory: "Memory", used: "Used", cost: "Cost" };
export const STATUSES = {
  short: "Running out",
  exhausted: "Exhausted",
  grace: "In grace",
  over: "Over",
  held: "Held",
  open: "Within budget",
  unlimited: "Unlimited",
};
export const COLUMNS = ["name", "status", "share", "spent", "remaining", "rate", "runsOut"];

const DAY_MS = 86_400_000;
const USUAL = {
  ns: "", window: "7d", by: "namespace", measure: "billed", idle: "",
  q: "", state: "", sort: "status", page: "1", budget: "",
};

/** The filters of a query string; what cannot be used counts as not given. */
export function parse(query) {
  const given = new URLSearchParams(query);
  const filters = { ...USUAL };
  for (const name of Object.keys(USUAL)) {
    const value = given.get(name);
    if (value !== null && value.length <= 256 && usable(name, value)) filters[name] = value;
  }
  return filters;
}

/** The shortest query string of some filters. */
export function format(filters) {
  const kept = Object.entries(filters).filter(([name, value]) => value !== USUAL[name]);
  const text = new URLSearchParams(kept).toString();
  return text ? `?${text}` : location.pathname;
}

/** The filters of the present address. */
export function current() {
  return parse(location.search);
}

/** Goes to other filters; typing replaces the present entry of the history, so that back does not go letter by letter. */
export function go(changes, { replace = false } = {}) {
  const next = { ...current(), ...changes };
  history[replace ? "replaceState" : "pushState"](null, "", format(next));
  dispatchEvent(new CustomEvent("filters"));
}

/** An address with some filters changed, for links. */
export function link(changes) {
  return format({ ...current(), ...changes });
}

/** A window of whole days in UTC, the last one included; from milliseconds. */
export function daysWindow(from, until) {
  return `${isoDay(from)}T00:00:00Z,${isoDay(until + DAY_MS)}T00:00:00Z`;
}

/** The first and the last day of such a window; null of any other. */
export function daysOf(window) {
  const found = /^(\d{4}-\d\d-\d\d)T00:00:00Z,(\d{4}-\d\d-\d\d)T00:00:00Z$/.exec(window);
  const end = found ? Date.parse(`${found[2]}T00:00:00Z`) : NaN;
  return found && Date.parse(`${found[1]}T00:00:00Z`) < end ? [found[1], isoDay(end - DAY_MS)] : null;
}

function isoDay(instant) {
  return new Date(instant).toISOString().slice(0, 10);
}

function usable(name, value) {
  switch (name) {
    case "window": return value in WINDOWS || /^[\dTZ:.,+-]{3,60}$/.test(value) || /^\d{1,3}[mhd]$/.test(value);
    case "by": return value in GROUPS || /^label:[\w./-]{1,200}$/.test(value);
    case "measure": return value in MEASURES;
    case "state": return value === "" || value in STATUSES;
    case "sort": return COLUMNS.includes(value.replace(/^-/, ""));
    case "page": return /^[1-9]\d{0,4}$/.test(value);
    case "idle": return value === "1";
    default: return true;
  }
}
