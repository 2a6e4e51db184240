"""Pods as other projects' examples and documents shape them mean here what they mean there.

The rows lie in tests/unit/corpus, a file for each dialect, each with the address of the manifest whose shape it has.
A row is a pod with a container `main`: its `limits`, `requests` (the limits again, where `equal`) and `claims`, other
fields of the `container`, limits of a `second` one, an `init` container, the pod's `annotations`, `labels` and other
fields of its `spec`; the `settings` of the dialects, and what the namespace is allowed (`allow`).

What comes of it is one of these: `becomes`, the GPUs, the core, and the memory in MiB or percent, summed over the GPUs,
of the main container or by the containers' names, with the `choices` made and the warnings that it `warns` of;
`refused`, with a part of the message; `nothing`, a pod whose keys for zero GPUs are taken out; `untouched`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.dialects.registry import DIALECTS, FOREIGN
from fairgpu.names import CHOICE_ANNOTATIONS, SIDECAR_CONTAINER, SOURCE_DIALECT
from fairgpu.permissions import parse_permissions
from tests.support.admission import KNOWLEDGE, NAMESPACE, Answer, Pod, apply, container, mutate, pod, validate
from webhook.admission.knowledge import Knowledge
from webhook.settings import Dialects, Webhook

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "unit" / "corpus"
UNREAD = "unread"


@dataclass(frozen=True)
class Row:
    dialect: str
    source: str
    fields: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.dialect}: {self.fields['shape']}"


def rows() -> Iterator[Row]:
    for file in sorted(CORPUS.glob("*.yaml")):
        document = yaml.safe_load(file.read_text())
        for fields in document["rows"]:
            prefix, separator, path = fields["source"].partition(":")
            source = document["sources"][prefix] + path if separator else fields["source"]
            yield Row(fields.get("dialect", file.stem), source, fields)


ROWS = list(rows())


def pod_of(fields: dict[str, Any]) -> Pod:
    limits = fields.get("limits")
    resources = {
        "limits": limits,
        "requests": limits if fields.get("equal") else fields.get("requests"),
        "claims": fields.get("claims"),
    }
    resources = {key: dict(value) if isinstance(value, dict) else value for key, value in resources.items() if value}
    containers = [container("main", resources=resources, **fields.get("container", {}))]
    if "second" in fields:
        containers.append(container("second", fields["second"]))
    spec = dict(fields.get("spec", {}))
    if "init" in fields:
        spec["initContainers"] = [container(**fields["init"])]
    return pod(
        *containers, annotations=fields.get("annotations"), metadata={"labels": fields.get("labels", {})}, **spec
    )


def asked(row: Row, item: Pod) -> tuple[Answer, Knowledge, Webhook]:
    knowledge = Knowledge(
        permissions={NAMESPACE: parse_permissions(",".join(row.fields.get("allow", [])))},
        timekeeper_ca=KNOWLEDGE.timekeeper_ca,
    )
    settings = Webhook(dialects=Dialects(**row.fields.get("settings", {})))
    return mutate(item, knowledge, settings), knowledge, settings


def containers_of(item: Pod) -> dict[str, Pod]:
    spec = item["spec"]
    everyone = spec["containers"] + spec.get("initContainers", [])
    return {each["name"]: each for each in everyone if each["name"] != SIDECAR_CONTAINER}


def keys_of(item: Pod) -> set[str]:
    found = set(item["metadata"].get("annotations") or {})
    for each in containers_of(item).values():
        for amounts in ("limits", "requests"):
            found |= set((each.get("resources") or {}).get(amounts) or {})
    return found


def meaning(each: Pod) -> list[Any] | None:
    """GPUs, core and memory of a container, as a row has them; requests are the limits."""
    resources = each.get("resources") or {}
    limits = {key: value for key, value in (resources.get("limits") or {}).items() if key.startswith("fairgpu.io/")}
    requests = {key: value for key, value in (resources.get("requests") or {}).items() if key.startswith("fairgpu.io/")}
    assert limits == requests
    if not limits:
        return None
    memory = limits.get("fairgpu.io/gpu-memory")
    percent = limits.get("fairgpu.io/gpu-memory-percentage")
    assert (memory is None) != (percent is None)
    shown = int(memory) if percent is None else f"{percent}%"
    return [int(limits["fairgpu.io/gpu"]), int(limits["fairgpu.io/gpu-core"]), shown]


def of_outcome(name: str) -> list[Row]:
    return [row for row in ROWS if name in row.fields]


def test_there_are_rows_enough_and_each_has_one_outcome_and_a_source() -> None:
    assert len(ROWS) >= 150
    assert {row.dialect for row in ROWS} == {dialect.name for dialect in DIALECTS.dialects} | {UNREAD}
    assert len({str(row) for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert len({"becomes", "refused", "nothing", "untouched"} & set(row.fields)) == 1
        assert row.source.startswith("https://") or (ROOT / row.source).exists()


@pytest.mark.parametrize("row", of_outcome("becomes"), ids=str)
def test_a_request_becomes_what_it_means_where_it_comes_from(row: Row) -> None:
    item = pod_of(row.fields)
    answer, knowledge, settings = asked(row, copy.deepcopy(item))
    assert answer.allowed, answer.message
    after = apply(item, answer.patch)
    wanted = row.fields["becomes"]
    wanted = wanted if isinstance(wanted, dict) else {"main": wanted}
    found = {name: meaning(each) for name, each in containers_of(after).items()}
    assert {name: amounts for name, amounts in found.items() if amounts is not None} == wanted
    annotations = after["metadata"]["annotations"]
    choices = {key.removeprefix("fairgpu.io/"): annotations[key] for key in CHOICE_ANNOTATIONS if key in annotations}
    assert choices == row.fields.get("choices", {})
    assert annotations[SOURCE_DIALECT] == row.dialect
    expected = row.fields.get("warns", [])
    assert len(answer.warnings) == len(expected), answer.warnings
    assert all(part in said for part, said in zip(expected, answer.warnings, strict=True)), answer.warnings
    assert keys_of(after).isdisjoint(FOREIGN.resources | FOREIGN.annotations)
    assert validate(after, knowledge, settings).allowed
    assert mutate(after, knowledge, settings).patch == []


@pytest.mark.parametrize("row", of_outcome("refused"), ids=str)
def test_a_request_that_means_nothing_here_is_refused_with_what_to_write(row: Row) -> None:
    answer, _, _ = asked(row, pod_of(row.fields))
    assert not answer.allowed
    assert row.fields["refused"] in answer.message


@pytest.mark.parametrize("row", of_outcome("nothing"), ids=str)
def test_a_request_for_zero_gpus_is_taken_out_and_nothing_else_done(row: Row) -> None:
    item = pod_of(row.fields)
    answer, knowledge, settings = asked(row, copy.deepcopy(item))
    assert answer.allowed
    after = apply(item, answer.patch)
    assert keys_of(after).isdisjoint(DIALECTS.resources | FOREIGN.annotations)
    assert {operation["op"] for operation in answer.patch} == {"remove"}
    assert validate(after, knowledge, settings).allowed
    assert mutate(after, knowledge, settings).patch == []


@pytest.mark.parametrize("row", of_outcome("untouched"), ids=str)
def test_a_field_that_is_not_read_stays_as_it_is(row: Row) -> None:
    answer, knowledge, settings = asked(row, pod_of(row.fields))
    assert (answer.allowed, answer.patch, answer.warnings) == (True, [], [])
    assert validate(pod_of(row.fields), knowledge, settings).allowed
