"""The settings of the agent keep its port where the kubelet's probes ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairgpu.commands import CommandError
from nodeagent.settings import read_settings

NAMED = {"FAIRGPU_NODEAGENT_NODE": "n1"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "::1", "localhost"])
def test_an_address_that_the_kubelet_cannot_reach_stops_the_start(host: str) -> None:
    with pytest.raises(CommandError, match=r"nodeagent\.metrics_host.*the kubelet's probes ask there"):
        read_settings({**NAMED, "FAIRGPU_NODEAGENT_METRICS_HOST": host}, Path("/dev/null"))


@pytest.mark.parametrize("host", ["", "10.1.2.3", "fd00::1", "::", "0.0.0.0"])  # noqa: S104
def test_an_address_of_the_pod_is_taken(host: str) -> None:
    settings = read_settings({**NAMED, "FAIRGPU_NODEAGENT_METRICS_HOST": host}, Path("/dev/null"))
    assert settings.metrics_host == host
