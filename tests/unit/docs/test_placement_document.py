"""The example of docs/placement.md is what the engine does, and its causes are those that there are."""

from __future__ import annotations

import re

import numpy as np

from scheduler.placement.causes import Cause, Shortage, explain
from scheduler.placement.choosing import Chooser
from scheduler.placement.mix import MixCounter
from scheduler.placement.request import Need, Request
from scheduler.placement.worth import learn
from tests.unit.docs.pages import ROOT
from tests.unit.scheduler.fleets import all_rows, fleet_of, node, place

TEXT = (ROOT / "docs" / "placement.md").read_text()


def test_the_pods_of_the_example_go_where_it_says() -> None:
    rows = re.findall(r"^\| (\w) \| (\d+) \| (\d+) \| (.+) \|$", TEXT, re.MULTILINE)
    requests = [Request((Need(1, int(core), memory_percent=int(memory)),)) for _, core, memory, _ in rows]
    assert len(rows) == 6
    chooser = Chooser(fleet_of(*(node(f"n{number}", 1) for number in range(3))))
    counter = MixCounter()
    for request in requests * 20:
        counter.see(request)
    fleet = chooser.fleet
    chooser.worth = learn(counter.mix(), fleet.classes, fleet.capacity(), np.random.default_rng(1))
    went = []
    for (name, *_), request in zip(rows, requests, strict=True):
        holding = place(chooser, name, request)
        causes = [explain(short, request) for short, _ in chooser.why(request, all_rows(fleet))] if not holding else []
        went.append(holding.node if holding else f"none: {'; '.join(causes)}")
    assert went == [goes for *_, goes in rows]


def test_every_cause_is_explained() -> None:
    described = set(re.findall(r"`(gpu[a-z-]*:|budget:|gang:)`", TEXT))
    request = Request((Need(1, 1, 1),))
    shown = {explain(Shortage(cause, 1, 1, 0), request).partition(" ")[0] for cause in Cause}
    assert shown | {"budget:", "gang:"} == described
