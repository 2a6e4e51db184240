"""Why a node takes no new GPU pods."""

from __future__ import annotations

import pytest

from nodeagent.offer import SILENT_AFTER_SECONDS, RuntimeFailure, withholdings


@pytest.mark.parametrize(
    ("foreign", "silent_seconds", "look_seconds", "applies_cdi", "events"),
    [
        ([], 0, 30, True, []),
        ([], 3 * 30, 30, True, []),
        ([], 3 * 30 + 1, 30, True, ["DriverSilent"]),
        ([], SILENT_AFTER_SECONDS, 1, True, []),
        ([], SILENT_AFTER_SECONDS + 1, 1, True, ["DriverSilent"]),
        (["nvidia.com/gpu"], 0, 30, True, ["ForeignDevicePlugin"]),
        ([], 0, 30, False, ["CDINotApplied"]),
        (["nvidia.com/gpu"], 1000, 30, False, ["ForeignDevicePlugin", "DriverSilent", "CDINotApplied"]),
    ],
)
def test_a_node_says_each_reason(
    foreign: list[str], silent_seconds: float, look_seconds: float, events: list[str], *, applies_cdi: bool
) -> None:
    found = withholdings(foreign, silent_seconds, look_seconds, applies_cdi=applies_cdi)
    assert [each.event for each in found] == events


def test_a_runtime_that_has_not_answered_since_the_start_withholds_the_gpus_and_the_message_has_its_error() -> None:
    (silent,) = withholdings([], 0, 30, applies_cdi=True, runtime_failure=RuntimeFailure("UNAVAILABLE: no such socket"))
    assert silent.event == "RuntimeSilent"
    assert "applies CDI: UNAVAILABLE: no such socket;" in silent.message


def test_a_runtime_that_answers_with_an_error_withholds_the_gpus_and_is_not_called_silent() -> None:
    why = "UNIMPLEMENTED: unknown service runtime.v1.RuntimeService"
    (refusing,) = withholdings([], 0, 30, applies_cdi=True, runtime_failure=RuntimeFailure(why, answers=True))
    assert refusing.event == "RuntimeRefuses"
    assert f"with an error: {why};" in refusing.message
    assert "disabled_plugins" in refusing.message


def test_a_host_that_does_not_take_the_shim_withholds_the_gpus_and_the_message_has_its_error() -> None:
    (refused,) = withholdings([], 0, 30, applies_cdi=True, shim_error="[Errno 5] Input/output error")
    assert refused.event == "ShimNotInstalled"
    assert "to the host: [Errno 5] Input/output error;" in refused.message


def test_the_message_names_the_resources_and_the_time() -> None:
    plugin, driver = withholdings(["a/gpu", "b/gpu"], 100.7, 1, applies_cdi=True)
    assert "as a/gpu, b/gpu:" in plugin.message
    assert "for more than 60 seconds" in driver.message


def test_a_reason_that_lasts_has_one_message_however_long_it_lasts() -> None:
    messages = {withholdings([], silent_seconds, 30, applies_cdi=True)[0].message for silent_seconds in (91, 92, 3600)}
    assert len(messages) == 1
