"""Lines about a budget for people: the effect of its state on pods, and the forecast of its spending."""

from __future__ import annotations

from typing import Any

from fairgpu.client.figures import gpu_hours, gpus, moment, span

Json = dict[str, Any]

ENFORCEMENT = {
    "observe": "observe: figures are shown, and nothing is done to any pod",
    "enforce": "enforce: new pods meet the state; running ones go on",
    "evict": "evict: new pods meet the state; after grace running ones are evicted, with notice",
}
ADMISSION = {
    "simple": "simple: pods come in until the money is spent",
    "safe": "safe: a pod comes in only where the money pays for its whole run",
}


def state(budget: Json) -> str:
    """Returns the budget's state; for an observed budget, also the state that it would have if enforced."""
    if budget["enforcement"] != "observe":
        return str(budget["state"])
    return f"{budget['state']} (observed only; enforced it would be {budget.get('computedState', 'unknown')})"


def admission(budget: Json) -> str:
    """Returns the condition for a new pod, and the amount that admitted pods may still spend."""
    kind = budget.get("admission", "")
    text = ADMISSION.get(kind, "")
    return f"{text}; {gpu_hours(budget['committed'])} GPU-hours are committed" if kind == "safe" else text


def grace(budget: Json) -> str:
    """Returns the remaining grace of a spent budget; empty where it is not in grace."""
    found = budget.get("grace")
    if not found:
        return ""
    ends = [f"another {gpu_hours(found['remaining'])} GPU-hours"] if found["remaining"] else []
    return " or ".join([*ends, f"until {moment(found['ends'])}"] if found["ends"] else ends)


def expiring(grant: Json) -> str:
    """Returns the remainder of a grant that expires before its period ends, and its expiry."""
    return f"{gpu_hours(grant['remaining'])} GPU-hours until {moment(grant['expires'])} (grant {grant['grant']})"


def stretch(budget: Json, name: str) -> str:
    """Returns a line of the forecast: the amount spent in a time, its rate, and when the money runs out at it."""
    found = (budget.get("forecast") or {}).get(name)
    if not found:
        return ""
    length = span(found["since"], found["until"])
    text = f"{gpu_hours(found['spent'])} GPU-hours in {length}, {gpus(found['rate'])} GPUs"
    if budget["available"] is None:
        return text
    end, left = found["exhaustion"], budget.get("remaining")
    if left is not None and int(left["microGPUSeconds"]) <= 0:
        return f"{text}: nothing is left"
    return f"{text}: {'runs out ' + moment(end) if end else 'lasts to the end of the period'}"
