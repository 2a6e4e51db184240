/** What a budget comes to, from its figures and its present rate alone. Instants are milliseconds since 1970. */

/** How urgent a budget is, most urgent first; the order in which a table shows states. */
export const URGENCY = ["held", "over", "grace", "short", "open", "unlimited"];

/**
 * The outlook of a budget at an instant.
 *
 * `share` and `forecastShare` are parts of what is available, `elapsed` the part of the period that is over;
 * `runsOutAt` is null where the money lasts at the present rate; `status` is the budget's state, or `short` where an
 * open budget will not last to the end of its period.
 */
export function outlook(budget, now) {
  const start = Date.parse(budget.period.start);
  const end = Date.parse(budget.period.end);
  const left = Math.max(0, end - now);
  const spent = budget.spent.gpuHours;
  const forecast = spent + (budget.rate.gpus * left) / 3_600_000;
  const available = budget.available === null ? null : budget.available.gpuHours;
  const runsOutAt = exhaustion(budget, available, spent, now, end);
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

function exhaustion(budget, available, spent, now, end) {
  if (available === null || spent >= available || budget.rate.gpus <= 0) return null;
  const at = now + ((available - spent) / budget.rate.gpus) * 3_600_000;
  return at < end ? at : null;
}

function shareOf(amount, available) {
  if (available === null) return null;
  if (available > 0) return amount / available;
  return amount > 0 ? Infinity : 0;
}
