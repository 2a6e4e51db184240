"""Audits the ledger: recomputes its figures from the entries and the cluster, and returns the differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from fairgpu.keeping import Wait
from timekeeper.audit.charges import Changes, payer_at, read_price_list
from timekeeper.audit.cluster import RESERVED, AuditContext, ClusterView, ReadCluster
from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.published import check_published, check_status
from timekeeper.audit.reading import (
    left_on_nodes,
    metered_uids,
    payers_of,
    present_periods,
    prices,
    read_snapshots,
    states_of,
)
from timekeeper.audit.sessions import Moment, check_against_pods, check_sessions, check_use, unmetered
from timekeeper.audit.snapshot import Snapshot, read_session, whole
from timekeeper.audit.sums import (
    Sums,
    UnseenEnd,
    billed_hours,
    check_closing_balance,
    check_hours,
    check_sums,
    difference,
    recompute,
    unseen_ends,
)
from timekeeper.domain.holdings.claims import DRIVERS
from timekeeper.domain.sessions import MeterFrom
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import reading
from timekeeper.ledger.client import Store
from timekeeper.ledger.codec import UNREADABLE
from timekeeper.settings import TimekeeperSettings

_log = structlog.get_logger()


def request_of(
    settings: TimekeeperSettings, accounts: tuple[str, ...] = (), period: Instant | None = None
) -> AuditRequest:
    """Returns a request for an audit, whose rules of billing come from the timekeeper's settings.

    Args:
        accounts: the accounts to audit; empty for all of them.
        period: the start of the period to audit; None for each account's present period.
    """
    metering = settings.metering
    return AuditRequest(
        accounts,
        period,
        bill=metering.bill.value,
        from_binding=metering.meter_from is MeterFrom.BIND,
        drivers=DRIVERS | set(settings.other_stacks.drivers),
    )


def check_period(snapshot: Snapshot) -> Iterator[Difference]:
    """Checks the bounds of a period and yields each difference.

    A period must end after its start, and at the start of the account's next period, if there is one. The account's
    `head` must name the account's two latest periods.
    """
    start, end = snapshot.start, snapshot.end
    starts = sorted(each for each in map(whole, snapshot.periods) if each is not None)
    following = next((each for each in starts if each > start), None)
    stored = snapshot.periods.get(str(start), "nothing")
    if end is None or end <= start or (following is not None and end != following):
        expected = str(following) if following is not None else f"an instant after {start}"
        yield difference(snapshot, Figure.PERIOD, "end", stored, expected, "the start of the period that follows")
    latest, named = (str(starts[-1]) if starts else "nothing"), snapshot.head.get("period", "nothing")
    if named != latest:
        yield difference(snapshot, Figure.PERIOD, "latest", named, latest, "the account's periods")
    before, named = str(starts[-2]) if len(starts) > 1 else "", snapshot.head.get("previous", "")
    if before and named != before:
        yield difference(snapshot, Figure.PERIOD, "previous", named, before, "the account's periods")


def check(snapshot: Snapshot, context: AuditContext) -> list[Difference]:
    """Returns the differences between stored and recomputed figures in one period of one account.

    If `check_period` yields a difference, the period's sessions and its published figures are not checked.

    Args:
        snapshot: the period as the store holds it.
        context: the inputs beside the snapshot: payers, prices, the cluster and the rules of billing.
    """
    periods = list(check_period(snapshot))
    sums = recompute(snapshot)
    of_sums = [*check_sums(snapshot, sums), *check_hours(snapshot)]
    if periods:
        return [*periods, *of_sums]  # without the period's bounds, the cost of its sessions is undefined
    return [*of_sums, *_check_sessions(snapshot, context), *_check_shown(snapshot, sums, context)]


def _check_sessions(snapshot: Snapshot, context: AuditContext) -> Iterator[Difference]:
    cluster = context.cluster
    # Without the nodes, a session that was not settled cannot be distinguished from one on a silent node.
    settled = context.settled if cluster is not None else None
    silent = cluster.silent if cluster is not None else frozenset()
    yield from check_sessions(snapshot, context.payers, Moment(settled, context.now, context.bill, silent))
    if cluster is not None and context.bill != RESERVED:
        yield from check_use(snapshot, context, Moment(settled, context.now, context.bill, silent), cluster.pods)
    if cluster is not None and snapshot.is_present(context.now):
        yield from check_against_pods(
            snapshot, cluster, context.prices, context.now, context.since, from_binding=context.from_binding
        )


def _check_shown(snapshot: Snapshot, sums: Sums, context: AuditContext) -> Iterator[Difference]:
    cluster = context.cluster
    limits = cluster.limits_of(snapshot.account) if cluster is not None else None
    yield from check_published(snapshot, sums, limits, context)
    if limits is not None and limits.allowance is not None:
        yield from check_closing_balance(snapshot, context.now)
    if cluster is not None and snapshot.account in cluster.budgets:
        item = cluster.budgets[snapshot.account]
        yield from check_status(snapshot, sums, item, limits, context)


ACCOUNTS_PER_STEP = 50
"""The most accounts whose snapshots are in memory at once."""
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """The scope and the rules of an audit.

    Attributes:
        accounts: the accounts to audit; empty for all of them.
        period: the start of the period to audit; None for each account's present one.
        bill: the quantity that is billed: reserved, used, or max, the larger of the two.
        from_binding: whether pods are metered from their binding on; otherwise, once they run.
        patience_seconds: the longest wait for figures that the leader writes later than the figures from which they
            follow.
        drivers: the drivers of Dynamic Resource Allocation whose devices are charged.
    """

    accounts: tuple[str, ...] = ()
    period: Instant | None = None
    bill: str = RESERVED
    from_binding: bool = True
    patience_seconds: float = 60.0
    drivers: frozenset[str] = DRIVERS


@dataclass(frozen=True, slots=True)
class AuditEnvironment:
    """The store, the cluster and the clock that an audit works with.

    Attributes:
        client: the client of the store; it returns bytes.
        read_cluster: returns the budgets, pods, claims and silent nodes of the cluster; None if they cannot be read.
        now: returns the present instant.
        wait: sleeps for a number of seconds, or until the process ends; returns whether the process ends.
    """

    client: Store
    read_cluster: ReadCluster
    now: Callable[[], Instant]
    wait: Wait


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        at: the instant at which the audit began.
        accounts: the number of audited accounts.
        sessions: the number of stored amounts of sessions in the audited periods.
        entries: the number of audited ledger entries.
        differences: every figure that differs from its expected value.
        missing: the requested accounts that do not exist or lack the requested period.
        saw_pods: whether the API server was read, so that budgets and pods were compared with the ledger, too.
        billed: the amount billed in the hours of the audited periods, in microGPU-seconds.
        unknown_model: the part of `billed` for devices of unknown model, at the price of `*`, in microGPU-seconds.
        unseen: the sessions whose end was not observed, so that they were charged up to the last sign of life.
    """

    at: Instant
    accounts: int
    sessions: int
    entries: int
    differences: tuple[Difference, ...]
    missing: tuple[str, ...] = ()
    saw_pods: bool = False
    billed: int = 0
    unknown_model: int = 0
    unseen: tuple[UnseenEnd, ...] = ()


@dataclass(slots=True)
class _Pass:
    """The result of one comparison of periods, of which an audit makes one or two; its fields are as in Audit.

    Attributes:
        accounts: the names of the audited accounts, and not their number.
    """

    accounts: set[str] = field(default_factory=set)
    sessions: int = 0
    entries: int = 0
    differences: list[Difference] = field(default_factory=list)
    billed: int = 0
    unknown_model: int = 0
    unseen: list[UnseenEnd] = field(default_factory=list)


def audit(environment: AuditEnvironment, request: AuditRequest) -> Audit:
    """Recomputes the ledger's figures and returns those that differ; it only reads, and delays no other process.

    Some figures are written a moment later than the figures from which they follow. If such a figure differs, it is
    compared a second time, after a wait, and returned only if it still has the same value and still differs.

    Args:
        environment: the store, the cluster and the clock.
        request: the scope and the rules.

    Raises:
        redis.RedisError, StoreError: the store does not answer, or a value of packed ledger entries cannot be read.
    """
    began = environment.now()
    cluster = environment.read_cluster()
    names = request.accounts or tuple(reading.account_names(environment.client))
    wanted = present_periods(environment.client, names, began)
    if request.period is not None:
        wanted = dict.fromkeys(wanted, request.period)
    first = _pass(environment, request, wanted, cluster)
    differences = [each for each in first.differences if not each.follows]
    doubtful = [each for each in first.differences if each.follows]
    if doubtful:
        _wait_for_what_follows(environment, request, doubtful)
        again = {each.account: wanted[each.account] for each in doubtful if each.account in wanted}
        second = _pass(environment, request, again, environment.read_cluster() if cluster is not None else None)
        kept = {_identity(each) for each in doubtful}
        differences += [each for each in second.differences if each.follows and _identity(each) in kept]
    if not request.accounts:
        differences += _unreadable_payers(environment.client)
    missing = tuple(sorted(set(request.accounts) - first.accounts))
    return Audit(
        began,
        len(first.accounts),
        first.sessions,
        first.entries,
        tuple(differences),
        missing,
        cluster is not None,
        first.billed,
        first.unknown_model,
        tuple(first.unseen),
    )


def _pass(
    environment: AuditEnvironment, request: AuditRequest, wanted: Mapping[str, int], cluster: ClusterView | None
) -> _Pass:
    result = _Pass()
    for chunk in _chunks(list(wanted)):
        audited = _audit_chunk(environment, request, {name: wanted[name] for name in chunk}, cluster)
        again = {each.account: each.period for _, differences in audited for each in differences if each.period}
        if again:  # perhaps the clocks disagree about where the period's entries begin
            repeated = _audit_chunk(environment, request, again, cluster, whole_ledger=True)
            audited = [item for item in audited if item[0].account not in again] + repeated
        for snapshot, differences in audited:
            result.differences += differences
            result.accounts.add(snapshot.account)
            result.sessions += len(snapshot.amounts)
            result.entries += len(snapshot.entries)
            billed, unknown = billed_hours(snapshot)
            result.billed += billed
            result.unknown_model += unknown
            result.unseen += unseen_ends(snapshot)
    if cluster is not None and request.period is None:
        result.differences += _unmetered(environment, request, cluster)
    return result


def _audit_chunk(
    environment: AuditEnvironment,
    request: AuditRequest,
    wanted: Mapping[str, int],
    cluster: ClusterView | None,
    **options: bool,
) -> list[tuple[Snapshot, list[Difference]]]:
    client = environment.client
    settled = reading.watched(client)
    snapshots = [each for each in read_snapshots(client, wanted, **options) if each.exists]
    namespaces = {name for snapshot in snapshots for name in _namespaces(snapshot)}
    states = states_of(client, sorted(namespaces))
    payers = payers_of(client, sorted(namespaces))
    context = AuditContext(
        payers=payers,
        states=states,
        prices=read_price_list(prices(client)),
        cluster=cluster,
        settled=settled,
        now=environment.now(),
        bill=request.bill,
        from_binding=request.from_binding,
        since=reading.since(client) or 0,
        left=left_on_nodes(client, payers, cluster.silent) if cluster is not None and cluster.silent else (),
    )
    return [(snapshot, _checked(snapshot, context)) for snapshot in snapshots]


def _checked(snapshot: Snapshot, context: AuditContext) -> list[Difference]:
    """Returns the differences of one account. A value that no check can read is one, and ends no other's audit."""
    if snapshot.fault:
        expected, reason = "values that can be read", "without them nothing else is checked"
        return [difference(snapshot, Figure.LEDGER, "", snapshot.fault, expected, reason)]
    try:
        return check(snapshot, context)
    except UNREADABLE as error:
        _log.error("account not audited", account=snapshot.account, error=repr(error), exc_info=error)
        reason = "the checks, which ended there"
        return [difference(snapshot, Figure.PERIOD, "", repr(error), "values that can be read", reason)]


def _unmetered(environment: AuditEnvironment, request: AuditRequest, cluster: ClusterView) -> Iterator[Difference]:
    settled = reading.watched(environment.client)
    if settled is None:
        return
    missing_meters = list(unmetered(cluster, metered_uids(environment.client), settled, request.drivers))
    payers: Mapping[str, Changes] = payers_of(
        environment.client, sorted({namespace for namespace, _ in missing_meters})
    )
    for namespace, uid in missing_meters:
        account = payer_at(payers[namespace], environment.now()) if namespace in payers else f"namespace:{namespace}"
        if not request.accounts or account in request.accounts:
            reason = "its pod holds a GPU"
            yield Difference(account, None, Figure.SESSION, uid, "nothing", "an open session", reason)


def _unreadable_payers(client: Store) -> Iterator[Difference]:
    """Yields a difference for each namespace whose stored payers cannot be read: its sessions cannot be settled."""
    for namespace, (text, _) in sorted(reading.unreadable_payers(client).items()):
        expected = "the accounts that paid, and from when"
        yield Difference(
            f"namespace:{namespace}", None, Figure.PAYERS, namespace, text[:200], expected, "its place in the store"
        )


def _wait_for_what_follows(environment: AuditEnvironment, request: AuditRequest, doubtful: list[Difference]) -> None:
    """Waits until the leader has settled all sessions once more, so that late figures can be compared a second time.

    The wait lasts for at most `AuditRequest.patience_seconds`. It lasts that long if a difference is in the status of a
    GPUBudget, since statuses are written last.

    Args:
        doubtful: the differences whose figures may only be late.
    """
    asked, waited = environment.now(), 0.0
    shows_status = any(each.figure is Figure.STATUS for each in doubtful)
    while waited < request.patience_seconds:
        settled = reading.watched(environment.client)
        if settled is not None and settled > asked and not shows_status:
            return
        if environment.wait(POLL_SECONDS):
            return
        waited += POLL_SECONDS


def _identity(difference: Difference) -> tuple[object, ...]:
    """Returns the fields by which a difference of the first comparison is recognised in the second one.

    The expected value is not among these fields, as it may have changed meanwhile.
    """
    return difference.account, difference.period, difference.figure, difference.subject, difference.stored


def _chunks(names: list[str]) -> Iterator[list[str]]:
    return (names[first : first + ACCOUNTS_PER_STEP] for first in range(0, len(names), ACCOUNTS_PER_STEP))


def _namespaces(snapshot: Snapshot) -> Iterator[str]:
    for text in (*snapshot.sessions.values(), *snapshot.ended.values()):
        record = read_session(text)
        if record is not None:
            yield record.namespace
    yield from snapshot.namespaces
