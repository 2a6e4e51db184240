"""The API server's own checks of GPUGrants and GPUCorrections: each gives or corrects money once."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.custom_resources import CORRECTIONS, DRY_RUN, GRANTS, correction, grant

pytestmark = pytest.mark.usefixtures("installation")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpuHours": 0}, '"0" is no amount to grant: write a number from -999999999'),
        ({"gpuHours": "0.000000"}, '"0.000000" is no amount to grant'),
        ({"gpuHours": "--3"}, '"--3" is no amount to grant'),
        ({"gpuHours": -3, "expires": "2030-01-01T00:00:00Z"}, "expires goes with gpuHours above 0 alone"),
        ({"gpuHours": "-0.5", "expires": "2030-01-01T00:00:00Z"}, "expires goes with gpuHours above 0 alone"),
        ({"expires": "tomorrow"}, "spec.expires"),
        ({"gpuHours": "1,5"}, '"1,5" is no amount to grant'),
        ({"gpuHours": None}, "spec.gpuHours: Required value"),
        ({"reason": None}, "spec.reason: Required value"),
        ({"reason": ""}, "a grant states its reason"),
        ({"reason": " \n"}, "a grant states its reason"),
        ({"budget": None}, "spec.budget: Required value"),
        ({"budget": ""}, "spec.budget in body should be at least 1 chars long"),
    ],
)
def test_a_faulty_grant_is_refused_with_what_to_write(
    control_plane: ControlPlane, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        control_plane.admin.api.create(GRANTS, grant(changes), DRY_RUN)
    assert message in refusal.value.message


@pytest.mark.parametrize("amount", [1, "0.25", "0.000001", "12", -1, "-0.25"])
def test_a_sound_grant_is_accepted(control_plane: ControlPlane, amount: int | str) -> None:
    control_plane.admin.api.create(GRANTS, grant({"gpuHours": amount}), DRY_RUN)


@pytest.mark.parametrize("change", [{"gpuHours": 1000}, {"budget": "team-b"}, {"reason": "another"}])
def test_a_grant_never_changes(control_plane: ControlPlane, change: dict[str, Any]) -> None:
    api = control_plane.admin.api
    api.create(GRANTS, grant())
    try:
        with pytest.raises(ApiError, match="a grant never changes, since it may be spent already: make another one"):
            api.patch(f"{GRANTS}/deadline", {"spec": change})
        api.patch(f"{GRANTS}/deadline", {"metadata": {"labels": {"quarter": "q4"}}})
    finally:
        api.delete(f"{GRANTS}/deadline")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpuHours": 0}, '"0" corrects nothing: write a number from -999999999'),
        ({"gpuHours": "-0.0"}, '"-0.0" corrects nothing'),
        ({"gpuHours": None}, "spec.gpuHours: Required value"),
        ({"effectivePeriod": None}, "spec.effectivePeriod: Required value"),
        ({"effectivePeriod": "January"}, "spec.effectivePeriod"),
        ({"reason": " "}, "a correction states its reason"),
        ({"namespace": "Team_A"}, '"Team_A" is no namespace name'),
        ({"budget": ""}, "spec.budget in body should be at least 1 chars long"),
    ],
)
def test_a_faulty_correction_is_refused_with_what_to_write(
    control_plane: ControlPlane, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        control_plane.admin.api.create(CORRECTIONS, correction(changes), DRY_RUN)
    assert message in refusal.value.message


def test_a_correction_never_changes(control_plane: ControlPlane) -> None:
    api = control_plane.admin.api
    api.create(CORRECTIONS, correction())
    try:
        with pytest.raises(ApiError, match="a correction never changes, since it is in the ledger already"):
            api.patch(f"{CORRECTIONS}/node-7", {"spec": {"gpuHours": 3}})
    finally:
        api.delete(f"{CORRECTIONS}/node-7")
