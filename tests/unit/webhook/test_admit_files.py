"""`fairgpu admit` reads files as Kubernetes' tools do, within bounds, and judges what can be judged of them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairgpu.commands import main
from webhook.dryrun.manifests import read_manifests

POD = "{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{name: a}]}}"
GPU_POD = """
apiVersion: v1
kind: Pod
metadata: {name: x}
spec:
  containers:
    - name: main
      resources:
        limits:
          nvidia.com/gpu: 1
          nvidia.com/gpu: 8
"""


def admit(tmp_path: Path, text: str, *arguments: str) -> int:
    file = tmp_path / "manifests.yaml"
    file.write_text(text)
    return main(["admit", "-f", str(file), "-n", "team-a", *arguments])


def nested(levels: int, line: str) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [line.format(n=n, below=n - 1) for n in range(1, levels)]
    return "\n".join([*lines, "apiVersion: v1", "kind: ConfigMap", "metadata: {name: x}"])


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        nested(12, "a{n}: &a{n} [*a{below}, *a{below}, *a{below}, *a{below}, *a{below}, *a{below}, *a{below}]"),
        nested(12, "a{n}: &a{n} {{p: *a{below}, q: *a{below}, r: *a{below}, s: *a{below}, t: *a{below}}}"),
        "a0: &a0 {k: v}\n" + "\n".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)),
    ],
    ids=["lists", "maps", "merges"],
)
def test_aliases_that_come_to_too_much_are_refused_and_not_expanded(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, text) == 2
    error = capsys.readouterr().err
    assert "manifests.yaml: the document at line 1 comes to" in error
    assert "values by its aliases; allowed: 100000" in error


def test_aliases_that_come_to_little_are_read(tmp_path: Path) -> None:
    text = GPU_POD.replace("limits:", "limits: &amounts").replace("          nvidia.com/gpu: 8\n", "")
    assert admit(tmp_path, text + "        requests: *amounts\n") == 0


def test_a_value_that_contains_itself_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, "a: &a [*a]") == 2
    assert "the value at line 1 contains itself" in capsys.readouterr().err


def test_a_document_nested_too_deep_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, "[" * 20_000) == 2
    assert "manifests.yaml: nested too deep" in capsys.readouterr().err


def test_a_key_that_stands_twice_is_named_with_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert admit(tmp_path, GPU_POD) == 0
    said = (
        "~  warning: spec.containers[0].resources.limits[nvidia.com/gpu]: written twice, in lines 10 and 11; "
        "the last one counts"
    )
    assert said in capsys.readouterr().out


def test_a_key_that_stands_twice_in_an_item_of_a_list_is_said_of_that_item(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = POD.replace("name: %s", "name: x, name: z")
    assert admit(tmp_path, f"{{apiVersion: v1, kind: List, items: [{POD % 'a'}, {twice}]}}", "-o", "json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["warnings"] == []
    assert second["warnings"] == ["items[1].metadata.name: written twice, in lines 1 and 1; the last one counts"]


def test_items_of_lists_within_lists_and_of_typed_lists_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    item = "{metadata: {name: typed}, spec: {containers: [{name: a}]}}"
    text = (
        f"{{apiVersion: v1, kind: List, items: [{POD % 'one'}, {{apiVersion: v1, kind: List, items: [{POD % 'two'}]}}, "
        f"{{apiVersion: v1, kind: PodList, items: [{item}]}}]}}"
    )
    assert admit(tmp_path, text, "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(entry["kind"], entry["name"]) for entry in found] == [("Pod", "one"), ("Pod", "two"), ("Pod", "typed")]


def test_an_item_that_is_no_object_is_named_and_the_others_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{{apiVersion: v1, kind: List, items: [{POD % 'a'}, {POD % 'b'}, null, {POD % 'c'}]}}"
    assert admit(tmp_path, text, "-o", "json") == 2
    shown = capsys.readouterr()
    assert [entry["name"] for entry in json.loads(shown.out)] == ["a", "b", "c"]
    assert shown.err.endswith("manifests.yaml: items[2]: the item is no object but null\n")


def test_lists_within_lists_without_an_end_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "{apiVersion: v1, kind: List, items: [" * 30 + "]}" * 30
    assert admit(tmp_path, text) == 2
    assert "lists within more than 10 lists" in capsys.readouterr().err


def test_a_path_that_cannot_be_looked_at_is_named_and_the_others_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    too_long = str(tmp_path / ("x" * 300))
    assert admit(tmp_path, POD % "sound", "-f", too_long) == 2
    printed = capsys.readouterr()
    assert f"{too_long}: File name too long" in printed.err
    assert "# Pod team-a/sound" in printed.out


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_folder: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert main(["admit", "-f", str(tmp_path)]) == 2
    assert f"{tmp_path}: Permission denied" in capsys.readouterr().err


def test_a_folder_with_the_suffix_of_a_file_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "charts.yaml").mkdir()
    (tmp_path / "pod.yaml").write_text(POD % "sound")
    assert main(["admit", "-f", str(tmp_path)]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize("output", ["text", "json"])
def test_half_a_surrogate_pair_is_read_as_go_reads_it(
    tmp_path: Path, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GPU_POD.replace(
        "name: x", r'name: x, "\ud83d\ude00": a, "\udc00": a, "\udc00": b, annotations: {a: "\ud83d"}'
    )
    admit(tmp_path, text, "-o", output)
    printed = capsys.readouterr().out
    printed.encode()
    assert "metadata.\ufffd" in printed or r"metadata.\ufffd" in printed


def test_a_file_whose_name_is_no_text_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / os.fsdecode(b"pod\xff.yaml")
    file.write_text(POD % "sound")
    assert main(["admit", "-f", str(file), "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["source"].endswith(r"pod\udcff.yaml")


def test_one_bad_file_of_a_folder_leaves_the_others_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("{")
    (tmp_path / "good.yaml").write_text(POD % "good")
    assert main(["admit", "-f", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "# Pod default/good: asks for no GPU, and stays as it is" in shown.out
    assert "bad.yaml" in shown.err


def test_the_pods_of_a_job_with_a_generated_name_can_be_applied_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "{apiVersion: batch/v1, kind: Job, metadata: {generateName: sample-job-}, spec: {template: {spec: {containers: "
        "[{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}}}}"
    )
    assert admit(tmp_path, text) == 0
    assert "generateName: sample-job-\n" in capsys.readouterr().out


READ_BY_KUBECTL: dict[str, object] = {
    "089": 89,
    "-089": -89,
    "017": 15,
    "0o17": 15,
    "0O17": 15,
    "0b1_1": 3,
    "-0b11": -3,
    "0X1f": 31,
    "1_000": 1000,
    "+5": 5,
    "0_8": 8,
    "_1": "_1",
    "1e3": 1000,
    "1E3": 1000,
    "1.0": 1,
    "1.": 1,
    "1.e3": 1000,
    "-1e-2": -0.01,
    ".5e1": 5,
    "-.5": -0.5,
    ".5_0": 0.5,
    "._5": "._5",
    ".e3": ".e3",
    ".": ".",
    "1e30": 1e30,
    "1e999": "1e999",
    "9223372036854775808": 9223372036854775808.0,
    "99999999999999999999": 1e20,
    "0x1FFFFFFFFFFFFFFFFFF": "0x1FFFFFFFFFFFFFFFFFF",
    "1" * 5000: "1" * 5000,
    "1:30": "1:30",
    "2001-01-01": "2001-01-01",
    "y": True,
    "N": False,
    "off": False,
    "~": None,
    "=": "=",
    "<<": "<<",
    '"1e3"': "1e3",
    "!!float 3": 3,
    "!!str 5": "5",
}
"""Plain YAML values, and what kubectl v1.34.2 sends for each (`kubectl annotate --local -f FILE x=y -o json`)."""


@pytest.mark.parametrize("written", READ_BY_KUBECTL, ids=lambda text: text[:24])
def test_a_value_is_read_as_kubectl_reads_it(tmp_path: Path, written: str) -> None:
    file = tmp_path / "manifests.yaml"
    file.write_text(f"apiVersion: v1\nkind: Pod\nspec: {{a: {written}}}\n")
    (manifest,) = read_manifests([str(file)]).objects
    read = manifest.item["spec"]["a"]

    assert (read, type(read)) == (READ_BY_KUBECTL[written], type(READ_BY_KUBECTL[written]))


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("089", "89"),
        ("1e3", "1000"),
        ("1.5", "1.5"),
        ("1e7", "1e+07"),
        ("0.00001", "1e-05"),
        ("123456.7", "123456.7"),
        ("12345678.5", "1.2345678e+07"),
        ("-0.5", "-0.5"),
        ("1e5", "100000"),
        ("1e6", "1e+06"),
        ("1e300", ".inf"),
        ("-.inf", "-.inf"),
        ("y", "true"),
        ("017", "15"),
    ],
)
def test_a_key_is_read_as_kubectl_reads_it(tmp_path: Path, written: str, key: str) -> None:
    file = tmp_path / "manifests.yaml"
    file.write_text(f"apiVersion: v1\nkind: Pod\nspec: {{{written}: a}}\n")
    (manifest,) = read_manifests([str(file)]).objects

    assert manifest.item["spec"] == {key: "a"}


@pytest.mark.parametrize(
    "written", ["{a: .inf}", "{a: -.INF}", "{a: .nan}", "{~: a}", "{a: !!int 1.5}", "{a: !!int x}", "{a: !!bool maybe}"]
)
def test_a_document_that_kubectl_refuses_to_read_is_refused(
    tmp_path: Path, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admit(tmp_path, f"apiVersion: v1\nkind: Pod\nspec: {written}\n") == 2
    assert "manifests.yaml: " in capsys.readouterr().err
