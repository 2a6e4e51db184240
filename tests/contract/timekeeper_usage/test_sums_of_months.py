"""A question about a whole window is answered from sums, and says what the rows say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.stored_hours import parts_of
from timekeeper.api.usage import ClosedDays, Query, find
from timekeeper.controller.archive import Archivist
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.windows import Retention, Window
from timekeeper.ledger import reading
from timekeeper.ledger.usage import accounts_usage

if TYPE_CHECKING:
    from tests.support.ledger.harness import LedgerHarness


@pytest.fixture
def harness(harness: LedgerHarness) -> LedgerHarness:
    """Two budgets over twelve days, the older ones packed and folded, with pods that run on."""
    harness.budget("a", ["team-a", "team-b"])
    harness.budget("c", ["team-c"])
    reconciler = harness.lead()
    for number, namespace in enumerate(("team-a", "team-b", "team-c", "others")):
        pod = harness.pod(f"p{number}", namespace, core=10 * (number + 1))
        pod["metadata"]["annotations"]["fairgpu.io/created-by"] = f"user-{number % 2}"
        harness.write_pod(pod)
    harness.reconcile()
    for _ in range(12 * 24):
        harness.reconcile(3600)
    Archivist(harness.client, harness.source, reconciler.books, reconciler.fencing_token, Retention(5, 13)).archive(
        harness.now
    )
    assert parts_of(harness.client, "a", hourly=True)
    assert parts_of(harness.client, "a", hourly=False)
    return harness


@pytest.mark.parametrize(
    "aggregate", [("user",), ("namespace",), ("budget", "model"), ("user", "namespace"), ("node",)]
)
@pytest.mark.parametrize("days", [(-20, 20), (-8, -2), (-4, 1), (-3, 0)])
def test_sums_say_what_rows_say(harness: LedgerHarness, aggregate: tuple[str, ...], days: tuple[int, int]) -> None:
    today = harness.now // DAY * DAY
    window = Window(today + days[0] * DAY, today + days[1] * DAY)
    query = Query(window, None, aggregate, 1000)
    found = find(harness.client, query, harness.now, ClosedDays())
    assert {item.key: list(item.figures) for item in found.items} == by_row(harness, query)
    alone = Query(window, None, aggregate, 1000, namespace="team-b")
    assert {item.key: list(item.figures) for item in find(harness.client, alone, harness.now).items} == by_row(
        harness, alone
    )


def by_row(harness: LedgerHarness, query: Query) -> dict[tuple[str, ...], list[int | None]]:
    """Returns the sum of every row in detail."""
    result: dict[tuple[str, ...], list[int | None]] = {}
    for usage in accounts_usage(
        harness.client, reading.account_names(harness.client), reading.assignments(harness.client)
    ):
        for row in usage.rows():
            inside = query.window.start <= row.hour * HOUR < query.window.end
            if inside and query.namespace in {None, row.dimensions.namespace}:
                values = {**row.dimensions._asdict(), "budget": usage.account}
                key = tuple(values[name] or "__unallocated__" for name in query.aggregate)
                known = result.setdefault(key, [0, 0, 0, None])
                for place, figure in enumerate(row.figures):
                    known[place] = known[place] if figure is None else figure + (known[place] or 0)
    return result
