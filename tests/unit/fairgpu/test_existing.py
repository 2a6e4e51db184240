"""The list of what other stacks are asked for by: once in the settings, and the same as what the timekeeper meters."""

from __future__ import annotations

import pytest

from fairgpu.existing import RESERVATIONS, Existing
from fairgpu.settings import SettingsError, load_settings
from timekeeper.domain.holdings import aliyun, deciding, hami, kai, nvidia, volcano
from webhook.settings import Settings, Webhook


def test_the_resources_are_those_that_the_timekeeper_meters() -> None:
    existing = Existing()

    assert set(existing.resources) == deciding.NAMES
    assert existing.prefixes == (nvidia.MIG_PREFIX,)


def test_the_annotations_are_those_by_which_pods_ask_and_schedulers_answer() -> None:
    existing = Existing()

    assert set(existing.annotations) >= set(deciding.ASKING_ANNOTATIONS)
    answers = {hami.ALLOCATED, volcano.ALLOCATED, kai.RECEIVED, aliyun.DEVICE_MEMORY, aliyun.ALLOCATION}
    to_give = {"hami.io/vgpu-devices-to-allocate", "volcano.sh/devices-to-allocate", "hami.io/vgpu-mig-allocations"}
    chips = ("910A", "910B2", "910B3", "910B4", "910B4-1", "910C", "310P")
    to_give |= {f"huawei.com/Ascend{chip}" for chip in chips}
    to_give |= {f"hami.io/Ascend{chip}-devices-to-allocate" for chip in chips}
    assert set(existing.schedulers_annotations) == answers | to_give
    assert set(deciding.ANNOTATIONS) <= {*existing.annotations, *existing.schedulers_annotations}


def test_the_pods_that_only_keep_a_gpu_for_others_are_left_alone() -> None:
    assert set(Existing().left_alone) >= set(RESERVATIONS)


def test_so_are_the_pods_by_which_kai_asks_an_autoscaler_for_a_node() -> None:
    """KAI writes their status (v0.17.0, pkg/nodescaleadjuster/scaler/scaler.go), and makes more where it may not."""
    assert "kai-scale-adjust" in Existing().left_alone


@pytest.mark.parametrize(
    "given",
    [
        {"resources": ["gpu"]},
        {"resources": ["example.com/a'b"]},
        {"prefixes": ["mig-"]},
        {"writers": ["system:serviceaccount:a:b'"]},
        {"device_classes": ["Gpu"]},
        {"classes": "sometimes"},
    ],
)
def test_a_name_that_would_break_a_policy_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        Existing.model_validate(given)


def test_the_section_is_read_beside_the_webhooks() -> None:
    read = load_settings(Settings, {"FAIRGPU_EXISTING_CLASSES": "always", "FAIRGPU_WEBHOOK_MODE": "account"})

    assert read.existing.classes == "always"
    assert read.webhook.mode == "account"
    assert Webhook().existing == Existing()
    with pytest.raises(SettingsError, match="FAIRGPU_EXISTING_CLASS"):
        load_settings(Settings, {"FAIRGPU_EXISTING_CLASS": "always"})
