from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.cluster.api import Json
from timekeeper.api.orders import FolderOrders, GrantOrder, gpu_hours_text, grant_object, name_of_key, place
from timekeeper.api.problems import ProblemError
from timekeeper.domain.money import MAX_GPU_HOURS, from_gpu_hours
from timekeeper.sources.base import ExistsError, SourceError

ORDER = GrantOrder("g1", "team-a", "2.5", "the deadline", "alice")


class Shelf:
    """Grants in memory, held by their names as an API server holds them."""

    def __init__(self) -> None:
        self.grants: dict[str, Json] = {}

    def create(self, grant: Json) -> Json:
        if grant["metadata"]["name"] in self.grants:
            raise ExistsError(grant["metadata"]["name"])
        self.grants[grant["metadata"]["name"]] = grant
        return grant

    def read(self, name: str) -> Json | None:
        return self.grants.get(name)


def test_an_order_becomes_a_grant_that_says_who_asked() -> None:
    grant, made = place(grant_object(ORDER), Shelf())
    assert made
    assert grant["kind"] == "GPUGrant"
    assert grant["spec"] == {"budget": "team-a", "gpuHours": "2.5", "reason": "the deadline", "requestedBy": "alice"}


@pytest.mark.parametrize("gpu_hours", ["2.5", "2.50", "2.500000"])
def test_an_order_that_comes_again_is_the_same_grant(gpu_hours: str) -> None:
    shelf = Shelf()
    first, _ = place(grant_object(ORDER), shelf)
    assert place(grant_object(GrantOrder("g1", "team-a", gpu_hours, "the deadline", "bob")), shelf) == (first, False)


@pytest.mark.parametrize(
    "other",
    [
        GrantOrder("g1", "team-b", "2.5", "the deadline", "alice"),
        GrantOrder("g1", "team-a", "3", "the deadline", "alice"),
        GrantOrder("g1", "team-a", "2.5", "another reason", "alice"),
    ],
)
def test_another_order_under_the_same_name_is_refused(other: GrantOrder) -> None:
    shelf = Shelf()
    place(grant_object(ORDER), shelf)
    with pytest.raises(ProblemError) as refusal:
        place(grant_object(other), shelf)
    assert refusal.value.status == 409
    assert list(shelf.grants.values()) == [shelf.grants["g1"]]


@pytest.mark.parametrize(
    ("given_value", "text"),
    [
        (2, "2"),
        (2.0, "2"),
        (2.5, "2.5"),
        ("2.5", "2.5"),
        (0.000001, "0.000001"),
        (1e8, "100000000"),
        (MAX_GPU_HOURS, str(MAX_GPU_HOURS)),
    ],
)
def test_an_amount_is_the_decimal_that_was_written(given_value: float | str, text: str) -> None:
    assert gpu_hours_text("gpuHours", given_value) == text


NO_AMOUNTS: list[Any] = [0, -1, -0.5, 0.0, 1e-7, 0.1234567, MAX_GPU_HOURS + 1, 2**53, 1e300, float("nan"), float("inf")]


@pytest.mark.parametrize("given_value", [*NO_AMOUNTS, "", "1e3", "x", " 1", "\uff11"])
def test_a_value_that_is_no_amount_is_refused_by_its_field(given_value: Any) -> None:
    with pytest.raises(ProblemError) as refusal:
        gpu_hours_text("gpuHours", given_value)
    assert refusal.value.faults[0]["field"] == "gpuHours"


@given(st.decimals(min_value="0.000001", max_value=MAX_GPU_HOURS, places=6))
def test_an_amount_as_a_json_number_is_exact_while_a_double_shows_it(amount: Any) -> None:
    as_json = float(amount)
    if f"{amount:f}".rstrip("0").rstrip(".") == gpu_hours_text("gpuHours", as_json):
        assert from_gpu_hours(gpu_hours_text("gpuHours", as_json)) == int(amount * 3_600_000_000)
    else:
        assert len(str(amount).replace(".", "").lstrip("0")) > 15


def test_a_key_names_one_grant_for_each_caller() -> None:
    assert name_of_key("alice", "k") == name_of_key("alice", "k")
    assert len({name_of_key("alice", "k"), name_of_key("bob", "k"), name_of_key("alice", "k2")}) == 3


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_is_refused_that_is_empty_or_too_long(key: str) -> None:
    with pytest.raises(ProblemError):
        name_of_key("alice", key)


@pytest.mark.parametrize("text", ["[", "since: 2026-02-30", "[" * 500, "gpus: !!bool maybe"])
def test_orders_of_a_folder_whose_budgets_cannot_be_read_are_not_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "budgets.yaml").write_text(text)
    with pytest.raises(SourceError, match=r"budgets\.yaml"):
        FolderOrders(tmp_path, lambda: 0).read("g1")


@pytest.mark.parametrize("metadata", ["", "text", "[name]"])
def test_an_order_of_a_folder_without_metadata_is_passed_over(tmp_path: Path, metadata: str) -> None:
    orders = [f"kind: GPUGrant\nmetadata: {each}" for each in (metadata, "{name: g1}")]
    (tmp_path / "budgets.yaml").write_text("\n---\n".join(orders))
    found = FolderOrders(tmp_path, lambda: 0).read("g1")
    assert found == {"kind": "GPUGrant", "metadata": {"name": "g1"}}
