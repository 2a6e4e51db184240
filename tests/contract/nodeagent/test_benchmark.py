"""The node agent that `make bench` measures does all the work that it has on a node whose GPUs are busy."""

from __future__ import annotations

from pathlib import Path

from nodeagent import figures_file
from tests.bench.nodeagent import GPUS, running_agent
from tests.support.waiting import wait_until


def test_the_agent_of_the_benchmark_gives_turns_and_reads_the_figures_of_each_container(tmp_path: Path) -> None:
    """That all containers are active on the pages, and that the agent warns of nothing, the benchmark itself holds."""
    with running_agent(tmp_path, sharing=4) as (pids, ledgers):
        assert len(set(pids)) == 2
        assert len(ledgers) == 4 * GPUS

        def busy() -> list[int]:
            file = tmp_path / "run" / figures_file.NAME
            figures = figures_file.decode(file.read_bytes()) if file.exists() else {}
            return [sum(figure.driver_bytes > 0 for figure in of_gpu.values()) for of_gpu in figures.values()]

        wait_until(lambda: busy() == [4] * GPUS, "the figures name each container's process")
