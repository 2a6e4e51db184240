/** What a budget comes to, by its figures and the pace of its spending. Instants are milliseconds since 1970. */

const HOUR_MS = 3_600_000;

/** How urgent a budget is, most urgent first; the order in which a table shows states. */
export const URGENCY = ["held", "over", "grace", "short", "open", "unlimited"];

/**
 * How fast a budget is being spent, in GPUs, which are GPU-hours an hour: over the last day where that is known, since
 * it smooths nights and restarts, else over the last hour, else at what is reserved at this moment.
 */
export function pace(budget) {
  const { lastHour, lastDay } = budget.forecast ?? {};
  return (lastDay ?? lastHour ?? budget).rate.gpus;
}

/**
 * The outlook of a budget at an instant.
 *
 * `share` and `forecastShare` are parts of what is available, `elapsed` the part of the period that is over;
 * `runsOutAt` is null where the money lasts at this pace; `status` is the budget's state, or `short` where an open
 * budget will not last to the end of its period.
 */
export function outlook(budget, now) {
  const start = Date.parse(budget.period.start);
  const end = Date.parse(budget.period.end);
  const spent = budget.spent.gpuHours;
  const forecast = spent + (pace(budget) * Math.max(0, end - now)) / HOUR_MS;
  const available = budget.available === null ? null : budget.available.gpuHours;
  const runsOutAt = exhaustion(budget, available, now, end);
  return {
    start,
    end,
    elapsed: Math.min(1, Math.max(0, (now - start) / (end - start))),
    forecast,
    share: shareOf(spent, available),
    forecastShare: shareOf(forecast, available),
    runsOutAt,
    status: budget.state === "open" && runsOutAt !== null ? "short" : budget.state,
  };
}

/**
 * What is left of a budget over its period: `left` at the ends of the steps of its usage so far, `ahead` from now on,
 * `pace` if it were spent evenly. Each is a list beside `times`, null where it says nothing.
 */
export function left(budget, items, now) {
  const { start, end, runsOutAt } = outlook(budget, now);
  const available = budget.available.gpuHours;
  const spentBy = new Map();
  let unended = 0; // of the step that is under way
  for (const item of items) {
    const at = Date.parse(item.end);
    if (at < now) spentBy.set(at, (spentBy.get(at) ?? 0) + item.billed.gpuHours);
    else unended += item.billed.gpuHours;
  }
  // Backwards from what is left now, which is exact; the first point is what was available.
  const ends = [...spentBy.keys()].sort((a, b) => a - b);
  const past = [start, ...ends, now];
  const last = available - budget.spent.gpuHours;
  const values = ends.map((_, index) => last + sum(ends.slice(index + 1).map((at) => spentBy.get(at))) + unended);
  values.unshift(available);
  values.push(last);
  const future = [runsOutAt, end].filter((time) => time !== null && time > now);
  const times = [...past, ...future];
  const rate = pace(budget) / HOUR_MS;
  return {
    times,
    left: [...values, ...future.map(() => null)],
    ahead: times.map((time) => (time < now ? null : last < 0 ? last - rate * (time - now) : Math.max(0, last - rate * (time - now)))),
    pace: times.map((time) => Math.max(0, (available * (end - time)) / (end - start))),
  };
}

function exhaustion(budget, available, now, end) {
  const rate = pace(budget);
  if (available === null || budget.spent.gpuHours >= available || rate <= 0) return null;
  const at = now + ((available - budget.spent.gpuHours) / rate) * HOUR_MS;
  return at < end ? at : null;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function shareOf(amount, available) {
  if (available === null) return null;
  if (available > 0) return amount / available;
  return amount > 0 ? Infinity : 0;
}
