from __future__ import annotations

import json
import subprocess
from argparse import Namespace

import pytest
import redis

from fairgpu.commands import CommandError
from tests.support.ledger.audited import KEYS, books, harness, server
from tests.support.ledger.harness import MONTH, LedgerHarness
from tests.support.ports import free_port
from tests.support.processes import FAIRGPU
from timekeeper.audit.command import run
from timekeeper.domain.money import GPU_SECOND
from timekeeper.settings import TimekeeperSettings

__all__ = ["books", "harness", "server"]


def command(harness: LedgerHarness, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = harness.folder / "settings.yaml"
    port = harness.client.connection_pool.connection_kwargs["port"]
    settings.write_text(f"timekeeper: {{redis: {{url: 'redis://127.0.0.1:{port}/0'}}}}")
    typed = [*FAIRGPU, "audit", "--store-only", "--standalone", str(harness.folder), *arguments]
    return subprocess.run(typed, capture_output=True, text=True, check=False, timeout=120)


def test_the_command_answers_0_where_nothing_differs(books: LedgerHarness) -> None:
    done = command(books, "--period", "2026-01-01T00:00:00Z")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "The API server was not asked: budgets and pods were not compared.",
        "Recomputed: 1 account, 3 sessions, 5 ledger entries. No figure differs.",
    ]


def test_the_command_answers_1_and_prints_what_differs(books: LedgerHarness) -> None:
    books.client.hset(KEYS.period(MONTH), "total", str(GPU_SECOND))
    done = command(books, "--budget", "a")
    assert done.returncode == 1
    *_, heading, titles, row = done.stdout.splitlines()
    assert heading.endswith("1 figure differs:")
    assert titles.split() == ["ACCOUNT", "PERIOD", "FIGURE", "OF", "STORED", "EXPECTED", "RECOMPUTED", "FROM"]
    assert row.startswith("a         2026-01-01T00:00:00Z   spent     -   1000000 (0.000278 GPUh)   188600000 (0.0")


def test_the_command_shows_programs_in_json(books: LedgerHarness) -> None:
    books.client.hset(KEYS.period(MONTH), "total", "1")
    done = command(books, "-o", "json")
    assert done.returncode == 1
    (difference,) = json.loads(done.stdout)["differences"]
    assert difference == {
        "account": "a",
        "period": "2026-01-01T00:00:00Z",
        "figure": "spent",
        "subject": None,
        "stored": "1",
        "expected": "188600000",
        "recomputedFrom": "checkpoint + ledger entries + unposted amounts",
    }


def test_a_period_that_is_no_instant_is_refused(books: LedgerHarness) -> None:
    done = command(books, "--period", "January")
    assert done.returncode == 1
    assert "--period: 'January' is no RFC 3339 timestamp" in done.stderr


def test_a_client_that_does_not_reach_the_store_is_distinguished_from_where_it_is_reached() -> None:
    asked = Namespace(budget=None, period=None, output="table", store_only=True, standalone=None)
    with (
        redis.Redis(port=free_port()) as client,
        pytest.raises(CommandError, match=r"refused(.|\n)*exec deploy/fairgpu-timekeeper -c jobs --$"),
    ):
        run(client, TimekeeperSettings(), asked, {})
