"""Parses GPUBudget objects into frozen budgets, naming each fault, and determines the payer of each namespace."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fairgpu.faults import Fault, explain, show
from fairgpu.states import BudgetState
from timekeeper.domain.money import MoneyError, from_gpu_hours
from timekeeper.domain.periods import ALLOWED, LAST_DAY_OF_EVERY_MONTH, CronError, Every, PeriodRule, check_cron
from timekeeper.domain.pricing import FOREVER
from timekeeper.domain.state import Admission, Enforcement, Limits, OnExhausted, published, state
from timekeeper.domain.timestamps import HOUR, MINUTE, Instant, TimeError, parse_duration, parse_instant

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DEFAULT_MIN_RUNTIME = 10 * MINUTE
DEFAULT_COMMIT = HOUR
DEFAULT_PENDING_COMMIT = 24 * HOUR
DEFAULT_EVICTION_NOTICE = 10 * MINUTE

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")

_BROKEN: Mapping[str, Any] = {}
"""Stands in for a map that is missing: its absence is reported once, not once for each field."""

Value = TypeVar("Value")


OVERHEAD = "overhead"
"""The account of the cluster's own namespaces, where pods of other stacks are metered: a budget without a limit."""

RESERVED_NAMES = frozenset({"book", "notices", "states"})
"""Names under which the store keeps what concerns all accounts; the GPUBudget CRD refuses them, too."""


class BudgetError(ValueError):
    """A budget that cannot be used; the message lists the faults.

    Attributes:
        faults: the invalid fields, each with what is allowed.
    """

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__(explain(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a set of namespaces per period.

    Amounts are microGPU-seconds, durations nanoseconds.

    Attributes:
        name: the name of the GPUBudget object.
        namespaces: the namespaces that spend from it.
        allowance: the amount that each period may spend; None for no limit.
        period: the rule that sets when periods start.
        rollover: the most that an unspent allowance adds to the next period.
        grace_amount: the most by which spending may exceed allowance and grants before new pods are treated by
            `on_exhausted`; None sets no limit.
        grace_duration: the longest time after exhaustion before new pods are treated by `on_exhausted`; None sets no
            limit. There is no grace if `grace_amount` and `grace_duration` are both None.
        on_exhausted: the treatment of new pods after grace.
        enforcement: the effect of the budget's state: shown only, applied to new pods, or to running pods too.
        min_runtime: the run time that the budget's money must pay for before a held pod is released.
        admission: the condition for a new pod: money is left, or the money pays for the pod's whole run.
        default_commit: under safe admission, the run time that is assumed of a pod that states none.
        pending_commit: under safe admission, the time for which the cost of a pod that does not run yet is kept for it.
        eviction_notice: the time between the announcement of a pod's eviction and the eviction.
        created: the object's creation, according to the API server's clock.
        uid: the object's uid.
        generation: the object's generation.
    """

    name: str
    namespaces: frozenset[str] = frozenset()
    allowance: int | None = None
    period: PeriodRule = field(default_factory=PeriodRule)
    rollover: int = 0
    grace_amount: int | None = None
    grace_duration: int | None = None
    on_exhausted: OnExhausted = OnExhausted.DEPRIORITIZE
    enforcement: Enforcement = Enforcement.ENFORCE
    min_runtime: int = DEFAULT_MIN_RUNTIME
    admission: Admission = Admission.SIMPLE
    default_commit: int = DEFAULT_COMMIT
    pending_commit: int = DEFAULT_PENDING_COMMIT
    eviction_notice: int = DEFAULT_EVICTION_NOTICE
    created: Instant = 0
    uid: str = ""
    generation: int = 0

    def limits(self, granted: int) -> Limits:
        """Returns the limits of spending in one period.

        Args:
            granted: the amount that grants added to the period, in microGPU-seconds; below 0 if more was taken away.
        """
        available = None if self.allowance is None else self.allowance + granted
        return Limits(available, self.grace_amount, self.grace_duration, self.on_exhausted)

    def unused_state(self) -> BudgetState:
        """Returns the state that admission acts on in a period in which nothing is granted or spent yet."""
        return published(state(self.limits(0), 0, None, 0), self.enforcement)


FIELDS: Mapping[str, tuple[str, ...]] = {
    "": (
        "namespaces",
        "allowance",
        "rollover",
        "period",
        "grace",
        "onExhausted",
        "enforcement",
        "minRuntime",
        "admission",
        "defaultCommit",
        "pendingCommit",
        "evictionNotice",
    ),
    "allowance": ("gpuHours",),
    "rollover": ("gpuHours",),
    "period": ("every", "cron", "start", "timeZone"),
    "period.start": ("time", "weekday", "dayOfMonth"),
    "grace": ("gpuHours", "duration"),
}
"""The fields of a GPUBudget's spec, keyed by the path of the map that holds them."""


def unknown_fields(spec: Mapping[Any, Any]) -> tuple[Fault, ...]:
    """Returns a fault for each field of a spec that no budget has, with the field that may be meant.

    A whole manifest in place of its spec gives one fault. The API server drops unknown fields, or refuses them. A spec
    from a ConfigMap or from the settings has no other check.

    Args:
        spec: the spec, decoded from YAML.
    """
    if "spec" in spec and {"apiVersion", "kind"} & spec.keys():
        return (
            Fault("spec", "a whole manifest", "the fields of its spec alone", "what stands under spec, without it"),
        )
    faults = list[Fault]()
    for path, known in FIELDS.items():
        held: Any = spec
        for key in filter(None, path.split(".")):
            held = held.get(key) if isinstance(held, Mapping) else None
        for key in held if isinstance(held, Mapping) else ():
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                meant = close[0] if close else f"one of {', '.join(sorted(known))}"
                where = ".".join(filter(None, ("spec", path, str(key))))
                faults.append(Fault(where, show(held[key]), "no field of this name", meant))
    return tuple(faults)


_FAULTS = "faults"
"""The key of the faults in an object from `with_faults`. Its value is a tuple, which neither JSON nor YAML can state,
so no user can write one; a list there is an unknown field of the object.
"""


def with_faults(item: Mapping[str, Any], faults: tuple[Fault, ...]) -> dict[str, Any]:
    """Returns a copy of a GPUBudget object with the faults of its source text, which `parse_budget` then raises.

    Args:
        item: the object, which stays unchanged.
        faults: the faults of the text; without any, the copy equals the object.
    """
    return {**item, _FAULTS: faults} if faults else {**item}


def parse_budget(item: Mapping[str, Any]) -> Budget:
    """Parses a GPUBudget object from the API server or from a file.

    Args:
        item: the object, decoded from JSON or YAML, or from `with_faults`.

    Raises:
        BudgetError: a field is missing or invalid; the error names all faults at once.
    """
    given = item.get(_FAULTS)
    if isinstance(given, tuple):
        raise BudgetError(given)
    reader = _Reader([])
    metadata = reader.mapping(item, "metadata", "")
    spec = reader.mapping(item, "spec", "")
    grace = reader.mapping(spec, "grace", "spec") if "grace" in spec else {}
    budget = Budget(
        name=reader.value(metadata, "name", "metadata", _name, "a name but book, notices and states", "team-a"),
        namespaces=reader.value(
            spec, "namespaces", "spec", _namespaces, "a list of one or more namespace names", "[team-a]"
        ),
        allowance=reader.amount(
            reader.mapping(spec, "allowance", "spec"), "gpuHours", "spec.allowance", optional=False
        ),
        period=_period(reader, reader.mapping(spec, "period", "spec")),
        rollover=_rollover(reader, spec),
        grace_amount=reader.amount(grace, "gpuHours", "spec.grace", optional=True),
        grace_duration=reader.duration(grace, "duration", "spec.grace", None),
        on_exhausted=reader.choice(spec, "onExhausted", "spec", OnExhausted, OnExhausted.DEPRIORITIZE),
        enforcement=reader.choice(spec, "enforcement", "spec", Enforcement, Enforcement.ENFORCE),
        min_runtime=reader.duration(spec, "minRuntime", "spec", DEFAULT_MIN_RUNTIME) or 0,
        admission=reader.choice(spec, "admission", "spec", Admission, Admission.SIMPLE),
        default_commit=reader.duration(spec, "defaultCommit", "spec", DEFAULT_COMMIT) or 0,
        pending_commit=reader.duration(spec, "pendingCommit", "spec", DEFAULT_PENDING_COMMIT) or 0,
        eviction_notice=reader.duration(spec, "evictionNotice", "spec", DEFAULT_EVICTION_NOTICE) or 0,
        created=reader.instant(metadata, "creationTimestamp"),
        uid=str(metadata.get("uid", "")),
        generation=metadata["generation"] if isinstance(metadata.get("generation"), int) else 0,
    )
    if reader.faults:
        raise BudgetError(tuple(reader.faults))
    return budget


def overhead_budget(namespaces: frozenset[str]) -> Budget:
    """Returns the budget, without a limit, that pays for the cluster's system namespaces.

    It counts as younger than any other budget, so another budget that names one of these namespaces pays for it.

    Args:
        namespaces: the names of the system namespaces.
    """
    return Budget(OVERHEAD, namespaces, created=FOREVER)


def payers(budgets: Iterable[Budget]) -> tuple[dict[str, Budget], dict[str, dict[str, str]]]:
    """Returns the budget that pays for each namespace, and the namespaces that a budget names but another pays for.

    If two budgets name a namespace, the older one pays; of two created in one second, the one whose name sorts first.

    Returns:
        The payer, keyed by namespace. Then, keyed by the name of each budget that names a namespace of another payer:
        these namespaces, each with the name of its payer.
    """
    paying: dict[str, Budget] = {}
    conflicts: dict[str, dict[str, str]] = {}
    for budget in sorted(budgets, key=lambda budget: (budget.created, budget.name)):
        for namespace in sorted(budget.namespaces):
            holder = paying.setdefault(namespace, budget)
            if holder is not budget:
                conflicts.setdefault(budget.name, {})[namespace] = holder.name
    return paying, conflicts


def _name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", value):
        raise ValueError
    if value in RESERVED_NAMES:
        raise ValueError
    return value


def _namespaces(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or not value:
        raise ValueError
    if not all(isinstance(name, str) and _NAMESPACE.fullmatch(name) for name in value):
        raise ValueError
    return frozenset(value)


def _period(reader: _Reader, period: Mapping[str, Any]) -> PeriodRule:
    if "cron" in period:
        return _cron_period(reader, period)
    every = reader.choice(period, "every", "spec.period", Every, None)
    start = reader.mapping(period, "start", "spec.period") if "start" in period else {}
    path = "spec.period.start"
    reader.only_with(start, "dayOfMonth", every, Every.MONTH)
    reader.only_with(start, "weekday", every, Every.WEEK)
    hour, minute = reader.value(start, "time", path, _clock, "HH:MM from 00:00 to 23:59", '"09:00"', (0, 0))
    if every is Every.HOUR and hour:
        reader.fault(f"{path}.time", start["time"], "00:MM where a period lasts an hour", f'"00:{minute:02d}"')
    return PeriodRule(
        every=every or Every.MONTH,
        zone=reader.value(period, "timeZone", "spec.period", _zone, "a name of the IANA database", "UTC", "UTC"),
        day_of_month=reader.value(
            start, "dayOfMonth", path, _day, f"1 to {LAST_DAY_OF_EVERY_MONTH}, as every month has", "1", 1
        ),
        weekday=reader.value(start, "weekday", path, WEEKDAYS.index, ", ".join(WEEKDAYS), "Monday", 0),
        hour=hour,
        minute=minute,
    )


def _rollover(reader: _Reader, spec: Mapping[str, Any]) -> int:
    if "rollover" not in spec:
        return 0
    cap = reader.amount(reader.mapping(spec, "rollover", "spec"), "gpuHours", "spec.rollover", optional=False)
    return cap or 0


def _cron_period(reader: _Reader, period: Mapping[str, Any]) -> PeriodRule:
    """Returns the rule in a `spec.period` with a cron expression; faults are added to the reader's.

    Beside a cron expression, `every` and `start` must be absent. Only a `start` at 00:00 is no fault, since the API
    server adds it by default.
    """
    for key in ("every", "start"):
        given = period.get(key)
        if given and given != {"time": "00:00"}:
            reader.fault(f"spec.period.{key}", given, "nothing beside cron, which says when", f"no {key}")
    try:
        cron = check_cron(period["cron"]) if isinstance(period["cron"], str) else ""
    except CronError:
        cron = ""
    if not cron:
        reader.fault("spec.period.cron", period["cron"], ALLOWED, '"0 6 1 1,4,7,10 *"')
    zone = reader.value(period, "timeZone", "spec.period", _zone, "a name of the IANA database", "UTC", "UTC")
    return PeriodRule(zone=zone, cron=cron)


def _clock(value: Any) -> tuple[int, int]:
    match = _CLOCK.fullmatch(value)
    if match is None:
        raise ValueError
    return int(match[1]), int(match[2])


def _zone(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    try:
        return ZoneInfo(value).key
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(value) from error


def _day(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LAST_DAY_OF_EVERY_MONTH:
        raise ValueError
    return value


@dataclass(slots=True)
class _Reader:
    """Reads fields of a GPUBudget, and collects the faults of invalid ones in `faults`."""

    faults: list[Fault]

    def fault(self, path: str, given: Any, allowed: str, instead: str) -> None:
        shown = "nothing" if given is None else show(given)
        self.faults.append(Fault(path=path, given=shown, allowed=allowed, instead=instead))

    def mapping(self, item: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
        value = item.get(key)
        if isinstance(value, dict):
            return value
        if item is not _BROKEN:
            self.fault(f"{path}.{key}".lstrip("."), value, "a map", "its fields under it")
        return _BROKEN

    def value(  # noqa: PLR0913, PLR0917 - a field, its path, its parser, and the words of its fault
        self,
        item: Mapping[str, Any],
        key: str,
        path: str,
        read: Any,
        allowed: str,
        instead: str,
        absent: Any = None,
    ) -> Any:
        given = item.get(key)
        if item is _BROKEN or (given is None and absent is not None):
            return absent
        try:
            return read(given)
        except (ValueError, TypeError):
            self.fault(f"{path}.{key}", given, allowed, instead)
            return absent

    def amount(self, item: Mapping[str, Any], key: str, path: str, *, optional: bool) -> int | None:
        given = item.get(key)
        if item is _BROKEN or (given is None and optional):
            return None
        try:
            return from_gpu_hours(given)
        except MoneyError as error:
            self.fault(f"{path}.{key}", given, str(error), "100")
            return None

    def duration(self, item: Mapping[str, Any], key: str, path: str, absent: int | None) -> int | None:
        given = item.get(key)
        if given is None:
            return absent
        try:
            return parse_duration(given)
        except TimeError as error:
            self.fault(f"{path}.{key}", given, str(error), "2h")
            return absent

    def choice(self, item: Mapping[str, Any], key: str, path: str, kind: type[Value], absent: Value | None) -> Value:
        allowed = list(kind)  # type: ignore[call-overload] # a type of enums is one that can be listed
        chosen: Value = self.value(item, key, path, kind, ", ".join(allowed), str(allowed[0]), absent)
        return chosen

    def only_with(self, item: Mapping[str, Any], key: str, every: Every | None, owner: Every) -> None:
        if key in item and every is not owner:
            self.fault(
                f"spec.period.start.{key}", item[key], f"only with every: {owner}", f"every: {owner}, or no {key}"
            )

    def instant(self, item: Mapping[str, Any], key: str) -> int:
        given = item.get(key)
        if given is None:
            return 0
        try:
            return parse_instant(given)
        except TimeError as error:
            self.fault(f"metadata.{key}", given, str(error), "nothing: the API server writes it")
            return 0
