"""A store of format 1 is converted by the first leader that knows the present one, whenever that one is killed."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.old_store import STORE, begin, check_converted, fill, usage
from tests.support.ledger.steps import KilledError
from tests.support.ledger.stored_hours import rows_of, write_rows
from timekeeper.api.usage import Query, find
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.windows import Window
from timekeeper.ledger import keys
from timekeeper.ledger.client import StoreError
from timekeeper.ledger.writing import take_fencing_token


@pytest.fixture
def old_store(harness: LedgerHarness) -> LedgerHarness:
    begin(harness)
    return harness


def test_an_old_store_shows_the_same_once_a_leader_has_taken_it_over(old_store: LedgerHarness) -> None:
    old_store.lead()
    old_store.reconcile()
    check_converted(old_store)
    old_store.reconcile(3600)
    assert (
        audit(
            AuditEnvironment(old_store.client, lambda: None, lambda: old_store.now, lambda _: False),
            AuditRequest(patience_seconds=0),
        ).differences
        == ()
    )


def test_a_leader_that_is_killed_at_any_step_leaves_the_rest_to_the_next_one(
    old_store: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for survived in count():
        old_store.client.flushall()
        fill(old_store.client)
        left = iter(range(survived))

        def step(name: str, left: Any = left) -> None:
            if name == "convert" and next(left, None) is None:
                raise KilledError

        def delete(*names: str, step: Any = step) -> Any:
            if keys.BOOK_CONVERTING in names:
                step("convert")
            return type(old_store.client).delete(old_store.client, *names)

        monkeypatch.setattr(old_store.client, "delete", delete)
        old_store.lead(step=step)
        try:
            old_store.reconcile()
        except KilledError:
            assert old_store.client.get(keys.BOOK_FORMAT) == b"2"
            monkeypatch.undo()
            old_store.lead()
            old_store.reconcile()
            check_converted(old_store)
        else:
            assert survived > len(STORE["usage"])
            return


def test_a_question_that_comes_before_its_account_is_converted_is_refused_and_never_answered_in_part(
    old_store: LedgerHarness,
) -> None:
    take_fencing_token(old_store.client, 0)
    with pytest.raises(StoreError, match="being converted: ask again"):
        usage(old_store.client)


def test_a_store_that_went_back_to_its_old_format_is_converted_again(old_store: LedgerHarness) -> None:
    old_store.lead()
    old_store.reconcile()
    reconciler = old_store.reconciler
    assert reconciler is not None
    old_store.client.flushall()
    fill(old_store.client)
    Reconciler(old_store.client, old_store.source, ControllerRules(), reconciler.fencing_token).reconcile(old_store.now)
    check_converted(old_store)


def test_a_store_of_a_later_format_is_left_to_later_timekeepers(old_store: LedgerHarness) -> None:
    old_store.client.set(keys.BOOK_FORMAT, "3")
    with pytest.raises(StoreError, match="is of format 3, and this timekeeper knows formats up to 2"):
        take_fencing_token(old_store.client, 0)
    with pytest.raises(StoreError, match="is of format 3, and this timekeeper knows formats up to 2"):
        find(old_store.client, Query(Window(0, old_store.now), None, ("namespace",), 10), old_store.now)


def test_a_row_is_added_to_the_one_that_was_written_while_its_account_could_not_be_converted(
    old_store: LedgerHarness,
) -> None:
    account = max(STORE["usage"], key=lambda name: len(STORE["usage"][name]))
    old_rows: Any = old_store.client.hgetall(keys.AccountKeys(account).hours)
    hour, _, dimensions = max(old_rows).decode().partition(" ")
    write_rows(old_store.client, account, {(int(hour), dimensions): "5 4 3 -"})
    before = [int(figure) for figure in old_rows[f"{hour} {dimensions}".encode()].split()]
    old_store.lead()
    old_store.reconcile()
    after = " ".join(map(str, [sum(pair) for pair in zip(before, (5, 4, 3, 0), strict=True)]))
    assert rows_of(old_store.client, account)[int(hour), dimensions] == after
