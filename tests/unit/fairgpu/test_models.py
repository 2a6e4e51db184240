from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.models import DRIVER_NAMES, best_key, takes, tie, words

KEYS = ("A10", "A100", "L4", "L40", "L40S", "H20", "H200", "T4", "T400", "A6000", "A100 SXM4", "RTX A6000")


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4"),
        ("NVIDIA-A100-SXM4-80GB", "A100 SXM4"),
        ("NVIDIA_A100_SXM4_80GB", "A100 SXM4"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100 SXM4"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100 SXM4"),
        ("Tesla-T4-SHARED", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H200 NVL", "H200"),
        ("Tesla T4", "T4"),
        ("NVIDIA T400", "T400"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("nvidia rtx a6000", "RTX A6000"),
        ("NVIDIA RTX 6000 Ada Generation", None),
        ("Simulated GPU", None),
    ],
)
def test_a_price_belongs_to_whole_words_of_the_models_name_and_most_words_win(model: str, key: str | None) -> None:
    assert best_key(KEYS, model) == key


@pytest.mark.parametrize(
    ("choice", "model"),
    [
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("A10", "NVIDIA A100-SXM4-80GB"),
        ("nvidia a100-sxm4-80gb", "NVIDIA A100-SXM4-80GB"),
        ("PCIE", "NVIDIA A100 80GB PCIe"),
    ],
)
def test_a_choice_takes_each_model_that_it_is_a_part_of(choice: str, model: str) -> None:
    assert takes(choice, model)
    assert not takes(choice, "NVIDIA H20")


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (("A100", "A100 SXM4", "H100"), None),
        (("A100-SXM4", "A100", "a100 sxm4"), ("A100-SXM4", "a100 sxm4", "A100-SXM4")),
        (("A100", "A100-SHARED"), ("A100", "A100-SHARED", "A100")),
        (("A100", "80GB"), ("A100", "80GB", "NVIDIA A100-SXM4-80GB")),
        (("A100 SXM4", "SXM4 80GB"), ("A100 SXM4", "SXM4 80GB", "NVIDIA A100-SXM4-80GB")),
    ],
)
def test_two_keys_that_name_one_model_by_equally_many_words_are_found(
    keys: tuple[str, ...], found: tuple[str, str, str] | None
) -> None:
    assert tie(keys) == found


@given(st.lists(st.sampled_from(KEYS), unique=True), st.sampled_from(DRIVER_NAMES))
def test_the_key_of_a_model_does_not_depend_on_the_order_of_the_keys(keys: list[str], model: str) -> None:
    assert best_key(keys, model) == best_key(list(reversed(keys)), model)


@given(st.text(max_size=20))
def test_any_text_has_words(name: str) -> None:
    assert all(word and not set(word) & set(" -_") for word in words(name))
