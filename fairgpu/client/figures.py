"""Formats figures for people: GPU-hours, rates, instants, and the lines that describe a budget's state and forecast."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

_STEPS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def gpu_hours(money: Any) -> str:
    """Formats an amount as GPU-hours with two decimal places, or with three significant digits between 0 and 1.

    An amount between 0 and 0.0001 has six decimal places. Amounts below 0 are formatted alike, with a minus sign.

    Args:
        money: an amount of the REST API, with the key `microGPUSeconds`. None, for no limit or an unknown amount, gives
            an empty text.
    """
    if not isinstance(money, dict):
        return ""
    hours = int(money["microGPUSeconds"]) / 3_600_000_000
    if hours == 0 or abs(hours) >= 1:
        return f"{hours:,.2f}"
    return f"{hours:.3g}" if abs(hours) >= 0.0001 else f"{hours:.6f}"


def gpus(rate: Any) -> str:
    """Formats a rate of spending as a number of GPUs, with two decimal places.

    Args:
        rate: a rate of the REST API, with the key `gpus`.
    """
    return f"{rate['gpus']:.2f}"


def moment(text: str | None) -> str:
    """Formats a time in the local time zone, to the second.

    Args:
        text: the time in RFC 3339; None gives an empty text.
    """
    if text is None:
        return ""
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def utc_moment(text: str) -> str:
    """Formats a time in UTC, to the minute; usage divides its days in UTC.

    Args:
        text: the time in RFC 3339.
    """
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def span(start: str, end: str) -> str:
    """Formats the length of a stretch of time in its two largest units, such as 3h12m.

    Args:
        start: the stretch's start, in RFC 3339.
        end: the stretch's end, in RFC 3339. An end before the start gives 0s.
    """
    seconds = int((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
    parts: list[str] = []
    for length, unit in _STEPS:
        count, seconds = divmod(max(seconds, 0), length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def percent(part: Any, whole: Any) -> str:
    """Formats one amount as a share of another, in whole percent.

    Args:
        part: an amount of the REST API, with the key `microGPUSeconds`.
        whole: the amount that is 100 percent, in the same form. None, or an amount of 0, gives an empty text.
    """
    if not isinstance(whole, dict) or int(whole["microGPUSeconds"]) == 0:
        return ""
    return f"{100 * int(part['microGPUSeconds']) / int(whole['microGPUSeconds']):.0f}%"


def worth(budget: Any, figure: str) -> str:
    """Formats a figure of a budget in the admin's currency, such as ` (1,250.00 EUR)`.

    The text is empty if the admin has set no currency, or if the figure is unlimited or unknown.

    Args:
        budget: a budget of the REST API.
        figure: the name of the figure: `available`, `spent` or `remaining`.
    """
    currency, costs = budget.get("currency"), budget.get("costs")
    if not currency or not costs or costs[figure] is None:
        return ""
    return f" ({costs[figure]:,.2f} {currency['code']})"


Json = dict[str, Any]

ENFORCEMENT = {
    "observe": "observe: figures are shown, and nothing is done to any pod",
    "enforce": "enforce: new pods meet the state; running ones go on",
    "evict": "evict: new pods meet the state; after grace running ones are evicted, with notice",
}
ADMISSION = {
    "simple": "simple: pods are admitted until the money is spent",
    "safe": "safe: a pod is admitted only where the money pays for its whole run",
}


def state(budget: Json) -> str:
    """Formats a budget's state; for a budget that is only observed, also the state that it would have if enforced.

    Args:
        budget: a budget of the REST API.
    """
    if budget["enforcement"] != "observe":
        return str(budget["state"])
    return f"{budget['state']} (observed only; enforced it would be {budget.get('computedState', 'unknown')})"


def admission(budget: Json) -> str:
    """Formats the rule by which a budget admits new pods: `simple` or `safe`.

    For safe admission, the text also has the amount that is committed already.

    Args:
        budget: a budget of the REST API.
    """
    kind = budget.get("admission", "")
    text = ADMISSION.get(kind, "")
    return f"{text}; {gpu_hours(budget['committed'])} GPU-hours are committed" if kind == "safe" else text


def grace(budget: Json) -> str:
    """Formats what is left of a budget's grace: its GPU-hours, its end, or both; empty for a budget not in grace.

    Args:
        budget: a budget of the REST API.
    """
    remaining_grace = budget.get("grace")
    if not remaining_grace:
        return ""
    ends = [f"another {gpu_hours(remaining_grace['remaining'])} GPU-hours"] if remaining_grace["remaining"] else []
    return " or ".join([*ends, f"until {moment(remaining_grace['ends'])}"] if remaining_grace["ends"] else ends)


def busy_now(budget: Json, now: str) -> str:
    """Formats how many GPUs a budget's pods keep busy now; empty if no source measures this.

    Args:
        budget: a budget of the REST API.
        now: the present time in RFC 3339, from which the text says how old the measurement is.
    """
    use = budget.get("presentUse")
    if not use:
        return ""
    source = f"by {use['source'].capitalize()}, {span(use['at'], now)} ago; advisory"
    return f"{use['busy']:.2f} of {use['known']:.2f} GPUs whose use is known, without prices, {source}"


def expiring(grant: Json) -> str:
    """Formats a grant with an expiry of its own: the GPU-hours that are not spent, and when they expire.

    Args:
        grant: an item of `expiring` in a budget of the REST API.
    """
    return f"{gpu_hours(grant['remaining'])} GPU-hours until {moment(grant['expires'])} (grant {grant['grant']})"


def stretch(budget: Json, name: str) -> str:
    """Formats a line of a budget's forecast: the amount spent in a stretch of time, the rate, and when money runs out.

    The text is empty if the forecast lacks that stretch of time.

    Args:
        budget: a budget of the REST API.
        name: the stretch of time, `lastHour` or `lastDay`.
    """
    burn = (budget.get("forecast") or {}).get(name)
    if not burn:
        return ""
    length = span(burn["since"], burn["until"])
    text = f"{gpu_hours(burn['spent'])} GPU-hours in {length}, {gpus(burn['rate'])} GPUs"
    if budget["available"] is None:
        return text
    end, left = burn["exhaustion"], budget.get("remaining")
    if left is not None and int(left["microGPUSeconds"]) <= 0:
        return f"{text}: nothing is left"
    return f"{text}: {'runs out ' + moment(end) if end else 'lasts to the end of the period'}"
