/** Figures for people, in the browser's own language. Amounts come in GPU-hours, instants as ISO 8601 texts. */

const HOUR_MS = 3_600_000;
const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const small = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 2 });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const minute = new Intl.DateTimeFormat(undefined, {
  day: "numeric", month: "short", hour: "2-digit", minute: "2-digit",
});

/** A number with as many digits as it deserves. */
export function number(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100) return whole.format(value);
  return size >= 0.1 ? tenths.format(value) : small.format(value);
}

/** An amount that the API gives as an object; null where nothing limits it. */
export function hours(money) {
  return money === null ? "no limit" : number(money.gpuHours);
}

/** A part of a whole in percent; an empty text where there is no whole. */
export function percent(part, all) {
  if (!all) return "";
  const share = (100 * part) / all;
  return `${share > 0 && share < 1 ? "<1" : Math.round(share)} %`;
}

/** A day, as in 3 Nov. */
export function date(instant) {
  return day.format(new Date(instant));
}

/** A day and a time of it. */
export function moment(instant) {
  return minute.format(new Date(instant));
}

/** How long something takes, from milliseconds, in its one or two largest units. */
export function span(milliseconds) {
  const left = Math.max(0, milliseconds) / HOUR_MS;
  if (left >= 48) return `${Math.round(left / 24)} days`;
  if (left >= 1) return `${Math.floor(left)} h ${Math.floor((left % 1) * 60)} min`;
  return `${Math.max(1, Math.round(left * 60))} min`;
}

/** An amount of a currency. */
export function money(value, code) {
  return new Intl.NumberFormat(undefined, { style: "currency", currency: code, maximumFractionDigits: 0 }).format(value);
}

/** What people call a budget; a namespace that no budget names has an account of its own. */
export function budgetName(budget) {
  return budget.name.startsWith("namespace:") ? `${budget.name.slice(10)} (no budget)` : budget.name;
}

const utcDay = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", timeZone: "UTC" });
const axisDay = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" });
const axisTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", timeZone: "UTC", hourCycle: "h23" });
const utcHour = new Intl.DateTimeFormat(undefined, {
  day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", timeZone: "UTC", hourCycle: "h23",
});

/** A step of a chart, by its start in milliseconds; usage is counted in UTC. */
export function stepName(start, step) {
  return (step.endsWith("h") ? utcHour : utcDay).format(start);
}

/** A day in UTC, for an axis. */
export function utcDate(instant) {
  return axisDay.format(instant);
}

/** A time of day in UTC, for an axis. */
export function utcTime(instant) {
  return axisTime.format(instant);
}
