/** Turns the items of a usage answer into series over time, sums and waste. */

export const IDLE = "__idle__";
const UNKNOWN = "__unallocated__";
const MOST = 7;

/**
 * An amount of an item: GPU-hours of what was billed, reserved or used, or its cost; null where no pod reported. Idle
 * capacity is billed to no budget: beside any other measure it is GPU time.
 */
export function amount(item, measure) {
  if (measure === "cost") return item.cost;
  if (keyOf(item) === IDLE) return item[measure === "memory" ? "memory" : "core"].gpuHours;
  return item[measure] === null ? null : item[measure].gpuHours;
}

/** What stands for an item in a legend: the values of its key. */
function keyOf(item) {
  return [...new Set(Object.values(item.key))].map((value) => (value === UNKNOWN ? "not known" : value)).join(" · ");
}

/**
 * Series over time: the largest ones by themselves, the smaller ones as one, what no pod reserved as another.
 *
 * Gives the starts of steps in milliseconds, the end of the last, and series with name, total, values and a colour.
 */
export function stack(items, measure) {
  const starts = [...new Set(items.map((item) => Date.parse(item.start)))].sort((a, b) => a - b);
  const place = new Map(starts.map((start, index) => [start, index]));
  const byKey = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!byKey.has(key)) byKey.set(key, starts.map(() => 0));
    byKey.get(key)[place.get(Date.parse(item.start))] += amount(item, measure) ?? 0;
  }
  const idle = byKey.get(IDLE);
  byKey.delete(IDLE);
  const all = [...byKey].map(([name, values]) => ({ name, values, total: sum(values) })).sort((a, b) => b.total - a.total);
  const shown = all.slice(0, all.length === MOST + 1 ? MOST + 1 : MOST);
  const series = shown.map((one, index) => ({ ...one, colour: index < MOST ? `--series-${index + 1}` : "--series-rest" }));
  const rest = all.slice(shown.length);
  if (rest.length > 0) series.push(added(`${rest.length} others`, rest, starts, "--series-rest"));
  if (idle) series.push({ name: "Idle", values: idle, total: sum(idle), colour: "--idle" });
  return { starts, ends: Math.max(...items.map((item) => Date.parse(item.end))), series, all };
}

/** What was reserved and not used, by key, the most wasted first; `silent` counts the keys without a report. */
export function waste(items) {
  const byKey = new Map();
  for (const item of items.filter((one) => keyOf(one) !== IDLE)) {
    const key = keyOf(item);
    const found = byKey.get(key) ?? { name: key, reserved: 0, used: 0, reported: false };
    if (item.used !== null) {
      found.reserved += item.core.gpuHours;
      found.used += item.used.gpuHours;
      found.reported = true;
    }
    byKey.set(key, found);
  }
  const all = [...byKey.values()];
  const rows = all.filter(({ reported }) => reported).map((row) => ({ ...row, wasted: Math.max(0, row.reserved - row.used) }));
  return { rows: rows.sort((a, b) => b.wasted - a.wasted), silent: all.length - rows.length };
}

/**
 * What the items of a usage answer with a forecast come to, by key, the most first; `byHour` and `byDay` by the pace. Where
 * a pace is not known, an item comes to what it was billed.
 */
export function expected(items) {
  const byKey = new Map();
  for (const item of items.filter((one) => keyOf(one) !== IDLE)) {
    const name = keyOf(item);
    const found = byKey.get(name) ?? { name, billed: 0, byDay: 0, byHour: 0, cost: 0 };
    found.billed += item.billed.gpuHours;
    const { lastDay, lastHour } = item.forecast;
    found.byDay += (lastDay?.billed ?? item.billed).gpuHours;
    found.byHour += (lastHour?.billed ?? item.billed).gpuHours;
    found.cost += (lastDay ?? item).cost ?? 0;
    byKey.set(name, found);
  }
  return [...byKey.values()].sort((a, b) => b.byDay - a.byDay);
}

/**
 * The forecast of several usage answers: the first one's end and times; a pace is null where any answer lacks it. Null
 * where none was asked for. Accounts whose settlement fails in any answer are named once.
 */
export function joined(forecasts) {
  const [first] = forecasts;
  if (!first) return null;
  const known = (pace) => (forecasts.every((forecast) => forecast[pace] !== null) ? first[pace] : null);
  const notSettled = [...new Set(forecasts.flatMap((forecast) => forecast.notSettled ?? []))];
  return { ...first, lastDay: known("lastDay"), lastHour: known("lastHour"), notSettled };
}

function added(name, several, starts, colour) {
  const values = starts.map((_, index) => sum(several.map((one) => one.values[index])));
  return { name, values, total: sum(values), colour };
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}
