"""What people outside the cluster read of a budget: a message as Slack, Mattermost and Rocket.Chat take it.

The form is that of Slack's incoming webhooks (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks):
`text` for people, and one attachment whose fields hold the same figures for programs.
"""

from __future__ import annotations

import json

from timekeeper.jobs.memory.figures import Figures
from timekeeper.rules.budgets import Budget
from timekeeper.rules.burn import lasts_until
from timekeeper.rules.milestones import Milestone
from timekeeper.rules.money import GPU_SECOND, SECOND, display
from timekeeper.rules.state import Enforcement, OnExhausted
from timekeeper.rules.timestamps import format_instant

_COLORS = {
    Milestone.HALF_SPENT: "good",
    Milestone.MOSTLY_SPENT: "warning",
    Milestone.RUNS_OUT_EARLY: "warning",
    Milestone.REOPENED: "good",
}


def message_of(budget: Budget, found: Figures, milestone: Milestone, now: int) -> str:
    """The body of the request as JSON; `now` is nanoseconds since 1970."""
    text = f"GPU budget {budget.name}: {_headline(budget, found, milestone, now)}"
    fields = {
        "event": milestone.value,
        "budget": budget.name,
        "state": found.state.value,
        "spent (GPU-hours)": display(found.spent),
        "available (GPU-hours)": display(found.limits.available or 0),
        "period ends": format_instant(found.period.end),
    }
    attachment = {
        "fallback": text,
        "color": _COLORS.get(milestone, "danger"),
        "fields": [{"title": title, "value": value, "short": True} for title, value in fields.items()],
        "ts": now // SECOND,
    }
    return json.dumps({"text": text, "attachments": [attachment]}, separators=(",", ":"))


def _headline(budget: Budget, found: Figures, milestone: Milestone, now: int) -> str:
    available = found.limits.available or 0
    spent = f"{display(found.spent)} of {display(available)} GPU-hours are spent"
    if milestone is Milestone.REOPENED:
        left = f"{display(found.remaining)} of {display(available)} GPU-hours are left"
        return f"open again; {left} until {format_instant(found.period.end)}."
    if milestone in {Milestone.HALF_SPENT, Milestone.MOSTLY_SPENT}:
        percent = found.spent * 100 // available if available else 100
        return f"{percent} percent spent. {spent}; the period ends {format_instant(found.period.end)}."
    if milestone is Milestone.RUNS_OUT_EARLY:
        return f"runs out before the period ends. {spent}. {_forecast(found, now)}"
    return f"{spent}. {_follows(budget, milestone)} The next period begins {format_instant(found.period.end)}."


def _forecast(found: Figures, now: int) -> str:
    parts = []
    for name, burn in (("hour", found.burns.hour), ("day", found.burns.day)):
        end = lasts_until(found.remaining, burn, now, found.period.end)
        if burn is not None and end is not None:
            parts.append(f"at the rate of the last {name} ({burn.rate / GPU_SECOND:.2f} GPUs) {format_instant(end)}")
    return f"Nothing is left {', '.join(parts)}; the period ends {format_instant(found.period.end)}."


def _follows(budget: Budget, milestone: Milestone) -> str:
    if budget.enforcement is Enforcement.OBSERVE:
        return "It is only observed: nothing follows."
    if milestone is Milestone.IN_GRACE:
        return "It is in its grace: pods run as usual."
    new = "wait" if budget.on_exhausted is OnExhausted.HOLD else "run in what others leave"
    running = "are given notice and evicted" if budget.enforcement is Enforcement.EVICT else "go on"
    return f"New pods {new}; running ones {running}."
