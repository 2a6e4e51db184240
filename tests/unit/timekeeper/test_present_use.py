"""An answer of Prometheus: the pods that it names, and the causes for which it says nothing."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.money import SECOND
from timekeeper.domain.present_use import (
    AnswerError,
    AnswerFault,
    AnswerRules,
    BusyPods,
    SeriesFault,
    error_text,
    read_answer,
)

NOW = 1_767_225_600
PERCENT = AnswerRules((("exported_namespace", "exported_pod"), ("namespace", "pod")), 100.0)
RATIO = AnswerRules(PERCENT.labels, 1.0)
OURS = {"namespace": "vision", "pod": "train-0"}


def series(value: Any, labels: Any = None, at: Any = NOW) -> dict[str, Any]:
    return {"metric": OURS if labels is None else labels, "value": [at, value]}


def body(*result: Any, **fields: Any) -> bytes:
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": list(result)}, **fields}
    ).encode()


def read(*result: Any, rules: AnswerRules = PERCENT, **fields: Any) -> BusyPods:
    return read_answer(body(*result, **fields), rules, NOW * SECOND)


def test_a_series_is_how_busy_the_gpu_of_its_pod_is() -> None:
    assert read(series("87.5")) == BusyPods({("vision", "train-0"): [0.875]}, {})
    assert read(series("0.25"), rules=RATIO).busy == {("vision", "train-0"): [0.25]}


@pytest.mark.parametrize(
    ("value", "share"),
    [("0", 0.0), ("-0", 0.0), ("100", 1.0), ("1e2", 1.0), ("105", 1.0), ("4.2e-5", 4.2e-7)],
)
def test_a_value_within_the_scale_is_a_part_of_full_use(value: str, share: float) -> None:
    assert read(series(value)).busy == {("vision", "train-0"): [share]}


@pytest.mark.parametrize("value", ["-1", "-1e-9", "105.1", "200", "9223372036854775794", "1e308"])
def test_a_value_beyond_the_scale_is_no_use(value: str) -> None:
    assert read(series(value)) == BusyPods({}, {SeriesFault.OUT_OF_SCALE: 1})


@pytest.mark.parametrize(
    "value", ["NaN", "+Inf", "-Inf", "nan", "Infinity", "", "many", "0x1", 87.5, None, True, ["1"]]
)
def test_a_number_that_is_not_finite_is_no_use_and_never_0(value: Any) -> None:
    assert read(series(value)) == BusyPods({}, {SeriesFault.NO_NUMBER: 1})


@pytest.mark.parametrize(
    "sample",
    [{}, {"histogram": [NOW, {"count": "3"}]}, {"value": None}, {"value": [NOW]}, {"value": "87"},
     {"value": ["now", "1"]}, {"value": [True, "1"]}],
)  # fmt: skip
def test_a_series_without_a_sample_is_no_use(sample: dict[str, Any]) -> None:
    assert read({"metric": OURS, **sample}) == BusyPods({}, {SeriesFault.NO_NUMBER: 1})


@pytest.mark.parametrize(
    ("labels", "pod"),
    [
        ({"exported_namespace": "vision", "exported_pod": "train-0", "namespace": "gpu-operator", "pod": "dcgm-1"},
         ("vision", "train-0")),
        ({"namespace": "gpu-operator", "pod": "dcgm-1"}, ("gpu-operator", "dcgm-1")),
        ({"exported_pod": "train-0", "namespace": "gpu-operator", "pod": "dcgm-1"}, ("gpu-operator", "dcgm-1")),
        ({"exported_namespace": "", "exported_pod": "", **OURS}, ("vision", "train-0")),
    ],
)  # fmt: skip
def test_the_first_pair_of_labels_that_a_series_has_names_its_pod(labels: Any, pod: tuple[str, str]) -> None:
    assert read(series("50", labels)).busy == {pod: [0.5]}


@pytest.mark.parametrize(
    "labels", [{}, [], "pod", None, {"pod": "a"}, {"namespace": "a", "pod": ""}, {"namespace": 1, "pod": 2}]
)
def test_a_series_that_names_no_pod_is_a_gpu_that_no_pod_holds(labels: Any) -> None:
    result = {"metric": labels, "value": [NOW, "50"]}
    assert read(result) == BusyPods({}, {SeriesFault.NO_POD: 1})


def test_a_series_of_a_claim_is_the_claims_whichever_pod_holds_it() -> None:
    rules = AnswerRules(PERCENT.labels, 100.0, (("dra_claim_namespace", "dra_claim_name"),))
    claim = {"dra_claim_namespace": "vision", "dra_claim_name": "shared", "namespace": "vision"}
    held = [series("60", {**claim, "pod": "a"}), series("20", {**claim, "pod": "b"}), series("9", OURS)]
    assert read(*held, series("1", {**OURS, "dra_claim_name": ""}), rules=rules).busy == {
        ("vision", "resourceclaim/shared"): [0.6, 0.2],
        ("vision", "train-0"): [0.09, 0.01],
    }


def test_several_series_of_a_pod_are_kept_apart_and_faulty_ones_spoil_none() -> None:
    found = read(series("100"), series("NaN"), series("50"), series("400"), "no series", series("1", {}))
    assert found.busy == {("vision", "train-0"): [1.0, 0.5]}
    assert found.faults == {SeriesFault.NO_NUMBER: 1, SeriesFault.OUT_OF_SCALE: 1, SeriesFault.NO_POD: 2}


def test_an_answer_of_many_labels_takes_little_more_memory_than_its_text() -> None:
    labels = {**OURS, **{f"label_{number}": f"value {number}" for number in range(40)}}
    given = body(*(series("50", labels) for _ in range(2_000)))
    tracemalloc.start()
    try:
        found = read_answer(given, PERCENT, NOW * SECOND)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(found.busy["vision", "train-0"]) == 2_000
    assert most < 2 * len(given)


@pytest.mark.parametrize("name", ["\ud800", "träin"])
def test_a_name_that_no_object_can_have_names_no_pod(name: str) -> None:
    assert read(series("50", {"namespace": "vision", "pod": name})) == BusyPods({}, {SeriesFault.NO_POD: 1})


def test_a_warning_with_half_of_a_surrogate_pair_can_be_logged() -> None:
    assert read(warnings=["\ud800 away"]).warnings == ("? away",)


def test_an_answer_without_series_is_one() -> None:
    assert read() == BusyPods({}, {})


def test_warnings_are_told_the_first_three_and_cut_short() -> None:
    assert read(series("1"), warnings=["a store is away", "x" * 999, 3, "fourth"]).warnings == (
        "a store is away",
        "x" * 200,
        "3",
    )
    assert read(series("1"), warnings="none", infos=["metric might not be a counter"]).warnings == ()


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (b"", AnswerFault.UNREADABLE),
        (b"<html>", AnswerFault.UNREADABLE),
        (b"[" * 100_000, AnswerFault.UNREADABLE),
        (b"\xff\xfe", AnswerFault.UNREADABLE),
        (b"[]", AnswerFault.UNREADABLE),
        (b"{}", AnswerFault.UNREADABLE),
        (b'{"status": "fine"}', AnswerFault.UNREADABLE),
        (b'{"status": "success", "data": {"resultType": "vector", "result": [NaN]}}', AnswerFault.UNREADABLE),
        (body(series("1", at=0)).replace(b"[0", b"[" + b"9" * 5000), AnswerFault.STALE),
        (b'{"status": ["success"]}', AnswerFault.UNREADABLE),
        (body()[:-1], AnswerFault.UNREADABLE),
        (b'{"status": "success"}', AnswerFault.NO_VECTOR),
        (b'{"status": "success", "data": []}', AnswerFault.NO_VECTOR),
        (b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "1"]}}', AnswerFault.NO_VECTOR),
        (b'{"status": "success", "data": {"resultType": "matrix", "result": []}}', AnswerFault.NO_VECTOR),
        (b'{"status": "success", "data": {"resultType": "vector", "result": null}}', AnswerFault.NO_VECTOR),
        (b'{"status": "error", "errorType": "bad_data", "error": "parse error"}', AnswerFault.ERROR),
        (b'{"status": "error", "data": {"resultType": "vector", "result": []}}', AnswerFault.ERROR),
        (body(series("1", at=NOW - 121)), AnswerFault.STALE),
        (body(series("1", at=NOW + 121)), AnswerFault.STALE),
        (body(series("1", at=0)), AnswerFault.STALE),
    ],
)
def test_an_answer_that_says_nothing_is_an_error_that_names_why(given: bytes, fault: AnswerFault) -> None:
    with pytest.raises(AnswerError) as raised:
        read_answer(given, PERCENT, NOW * SECOND)
    assert raised.value.fault is fault
    assert 0 < len(str(raised.value)) < 500


def test_the_clocks_of_both_may_differ_by_two_minutes() -> None:
    assert len(read(series("1", at=NOW - 119.5), series("2", at=NOW + 119)).busy) == 1


def test_the_words_of_an_error_are_there_where_the_body_has_them() -> None:
    assert (
        error_text(b'{"status": "error", "errorType": "bad_data", "error": "parse error"}') == "bad_data: parse error"
    )
    assert error_text(b"<html>Bad Gateway</html>") == error_text(body()) == ""


WORDS = ["vector", "success", "50", "NaN"]
KEYS = ["status", "data", "resultType", "result", "metric", "value", "pod", "namespace"]
LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5) | st.sampled_from(WORDS)
JSON = st.recursive(
    LEAVES | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=12,
)


@given(document=JSON, result=st.lists(JSON, max_size=5))
def test_any_text_is_read_or_refused_and_each_share_is_one(document: Any, result: list[Any]) -> None:
    for given_body in (
        json.dumps(document).encode(),
        body(*result),
        body(*({"metric": OURS, "value": x} for x in result)),
    ):
        try:
            found = read_answer(given_body, PERCENT, NOW * SECOND)
        except AnswerError:
            continue
        assert all(0 <= share <= 1 and math.isfinite(share) for shares in found.busy.values() for share in shares)


@given(values=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_each_series_counts_once_for_its_pod_or_for_its_fault(values: list[float]) -> None:
    found = read(*(series(str(value)) for value in values))
    assert sum(map(len, found.busy.values())) + sum(found.faults.values()) == len(values)
