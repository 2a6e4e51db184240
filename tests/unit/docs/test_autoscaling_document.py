"""The figures of docs/autoscaling.md, and what it shows of a fragmented pod, are those of the code."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fairgpu import names
from fairgpu.commands import build_parser
from fairgpu.inventory import MAX_SLOTS, Device
from nodeagent.node_patches import capacity
from scheduler.cluster.watches import NODES
from scheduler.view import commands
from tests.unit.docs.pages import ROOT
from tests.unit.scheduler.extended import api_node, pod

TEXT = (ROOT / "docs" / "autoscaling.md").read_text()
ASKS = r"\$ fairgpu (why train-0 -n research(?: -v)?)\n(.+?)```"


def test_a_node_offers_what_the_page_says() -> None:
    gpus, mib = (
        int(text.replace(",", "")) for text in re.findall(r"of a node with (\d+) GPUs of ([\d,]+) MiB", TEXT)[0]
    )
    offered = capacity([Device(f"GPU-{at}", "A100", mib, 0, f"{at}") for at in range(gpus)], [])
    offered[names.GPU] = gpus * MAX_SLOTS
    rows = re.findall(r"^\| `(fairgpu\S+)` \| (\d+)", TEXT, re.MULTILINE)
    assert {name: int(amount) for name, amount in rows} == offered
    tags = re.findall(r"node-template/resources/(\S+) = (\d+)", TEXT)
    assert {name: int(amount) for name, amount in tags} == offered
    [overlay] = re.findall(r"capacity:\n((?: +fairgpu\S+ \S+\n)+)", TEXT)
    assert set(re.findall(r"(fairgpu\S+):", overlay)) == set(offered)


def test_the_startup_taint_is_the_one_that_the_agent_removes() -> None:
    assert f"`{names.STARTUP_TAINT}`" in TEXT


class Fragmented:
    """An API server with two nodes of two GPUs, of each of which 21 percent are held, and a pod that asks for 80."""

    def __init__(self) -> None:
        self.nodes = [api_node(f"gpu-node-{at}", 2) for at in (1, 2)]
        self.waits = pod("train-0", core=80, schedulerName=names.SCHEDULER_NAME)
        self.held = [holder(f"gpu-node-{at}", gpu) for at in (1, 2) for gpu in range(2)]

    def get(self, path: str, *_query: object, **_options: object) -> dict[str, Any]:
        if path.endswith("/pods/train-0"):
            return self.waits
        if path.endswith("/events"):
            return {"items": []}
        return {"items": self.nodes if path == NODES.path else [self.waits, *self.held], "metadata": {}}


def holder(node: str, gpu: int) -> dict[str, Any]:
    """A pod that holds 21 percent of a GPU."""
    device = f'{{"uuid":"{node}-{gpu}","model":"A100","totalMiB":1000,"core":21,"memoryMiB":210}}'
    item = pod(f"{node}-{gpu}", core=21, nodeName=node)
    item["metadata"]["annotations"][names.ALLOCATION] = (
        f'{{"v":1,"node":"{node}","containers":[{{"name":"main","devices":[{device}]}}]}}'
    )
    return item


@pytest.mark.parametrize("page", ["autoscaling.md", "client.md"])
def test_why_prints_what_the_page_shows(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [(words, shown)] = re.findall(ASKS, (ROOT / "docs" / page).read_text(), re.DOTALL)
    monkeypatch.setattr(commands, "connect", lambda _environ: Fragmented())
    arguments = build_parser().parse_args(words.split())
    assert arguments.run(arguments) == 0
    assert capsys.readouterr().out == shown
