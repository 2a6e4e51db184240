"""The node agent learns the configuration of the runtime from its socket."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import pytest

from nodeagent.runtime import devices
from nodeagent.runtime.devices import RuntimeConfiguration, RuntimeStatus, RuntimeStatusError
from tests.support.fake_runtime import runtime_that_hangs, runtime_with_cdi, runtime_without_cri


def test_a_runtime_that_answers_says_how_it_is_configured(tmp_path: Path) -> None:
    with runtime_with_cdi(tmp_path / "socket", tmp_path / "cdi"), closing(RuntimeStatus(tmp_path / "socket")) as status:
        assert status.ask(tmp_path / "cdi") == RuntimeConfiguration(applies_cdi=True)


def test_a_program_that_does_not_know_the_question_refuses_it_and_is_not_silent(tmp_path: Path) -> None:
    with (
        runtime_without_cri(tmp_path / "socket"),
        closing(RuntimeStatus(tmp_path / "socket")) as status,
        pytest.raises(RuntimeStatusError, match="UNIMPLEMENTED: ") as raised,
    ):
        status.ask(tmp_path / "cdi")
    assert raised.value.answers


@pytest.mark.parametrize("silent", [runtime_that_hangs, lambda _: nullcontext()], ids=["hangs", "is-away"])
def test_a_runtime_that_hangs_or_is_away_is_silent(
    silent: Callable[[Path], AbstractContextManager[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "LIMIT_SECONDS", 0.2)
    with (
        silent(tmp_path / "socket"),
        closing(RuntimeStatus(tmp_path / "socket")) as status,
        pytest.raises(RuntimeStatusError, match=r"DEADLINE_EXCEEDED: |UNAVAILABLE: ") as raised,
    ):
        status.ask(tmp_path / "cdi")
    assert not raised.value.answers
