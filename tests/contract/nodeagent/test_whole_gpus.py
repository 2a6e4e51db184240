"""The use of whole GPUs as the agent counts it, read as the sidecar reads it out of the pod's volume."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from nodeagent.containers.records import GivenDevice, Record
from nodeagent.driver_figures import Figure
from nodeagent.gpu_watch import Observation
from nodeagent.turns import Policy
from nodeagent.whole_gpus import MOST_MEASURED_NS, WholeGpus, put
from sidecar.tally import Tally, advance
from sidecar.usage_record import DeviceUsage, read_usage

SECOND, MIB = 10**9, 1 << 20
UID, GPU = "uid-1", "GPU-0"


def record(*, whole: bool = True, start: int = 1) -> Record:
    device = GivenDevice(GPU, 100, 16384, 0, 7)
    return Record("team", "train", UID, "main", frozenset({"slot-0"}), start, whole, Policy.HARD, 1, (device,))


def seen(percent: float, mib: int, *, timed: bool = True) -> Observation:
    key = UID, "main", GPU
    figures, measured = {key: Figure(mib * MIB)}, [GPU] if timed else []
    return Observation(figures, busy_percent={key: percent}, processes={key[:2]: 1}, timed=measured)


def silent() -> Observation:
    return Observation(silent={GPU: "NVML: Unknown Error"})


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    """The kubelet's folder of pods, with the volume of one."""
    volume(tmp_path).mkdir(parents=True)
    return tmp_path


def volume(pods: Path) -> Path:
    return pods / UID / "volumes" / "kubernetes.io~empty-dir" / "fairgpu-usage" / "main"


def used(pods: Path) -> DeviceUsage:
    read = read_usage(str(volume(pods).parent), "main")
    assert read is not None
    (device,) = read.devices
    return device


def test_the_sidecar_reads_what_the_driver_said(pods: Path) -> None:
    whole = WholeGpus(pods)
    for number, (percent, mib) in enumerate([(0, 100), (50, 900), (100, 300)]):
        whole.write([record()], seen(percent, mib), number * SECOND, number)
    assert used(pods).busy_ns == 1.5 * SECOND
    assert (used(pods).uuid, used(pods).memory_peak_bytes) == (GPU, 900 * MIB)
    assert read_usage(str(volume(pods).parent), "main").measured_by_node  # type: ignore[union-attr]
    assert stat.S_IMODE((volume(pods) / "usage").stat().st_mode) == 0o644


def test_a_gpu_whose_time_the_driver_has_not_measured_yet_has_no_count(pods: Path) -> None:
    """A count of 0 would say that it was not used: a namespace that pays for use would not pay for it."""
    whole = WholeGpus(pods)
    whole.write([record()], seen(0, 900, timed=False), 0, 0)
    read = read_usage(str(volume(pods).parent), "main")
    assert read is not None
    assert read.devices == ()
    whole.write([record()], seen(50, 900), SECOND, 1)
    assert used(pods).busy_ns == 0.5 * SECOND
    whole.write([record()], seen(0, 900, timed=False), 2 * SECOND, 2)
    assert used(pods).busy_ns == 0.5 * SECOND, "what was counted stays"


def test_time_in_which_the_driver_was_silent_counts_as_used(pods: Path) -> None:
    """A GPU that nothing measures is billed as reserved; a driver that is silent is no idle GPU."""
    whole = WholeGpus(pods)
    whole.write([record()], seen(0, 0), 0, 0)
    for second in range(1, 3600):
        whole.write([record()], silent(), second * SECOND, second)
    assert used(pods).busy_ns == used(pods).span_ns == 3599 * SECOND - MOST_MEASURED_NS
    whole.write([record()], seen(0, 0), 3600 * SECOND, 3600)
    assert used(pods).busy_ns == 3600 * SECOND - MOST_MEASURED_NS
    for second in range(3601, 3700):
        whole.write([record()], seen(0, 0), second * SECOND, second)
    assert used(pods).busy_ns == 3600 * SECOND - MOST_MEASURED_NS, "the idle time since counts as measured"


def test_time_in_which_the_driver_hung_counts_as_used(pods: Path) -> None:
    whole = WholeGpus(pods)
    whole.write([record()], seen(100, 0), 0, 0)
    whole.write([record()], seen(50, 0), 3600 * SECOND, 1)
    assert used(pods).busy_ns == 3600 * SECOND - MOST_MEASURED_NS // 2


def test_time_in_which_the_driver_hung_counts_as_used_though_the_container_started_again(pods: Path) -> None:
    whole = WholeGpus(pods)
    whole.write([record()], seen(0, 0), 0, 0)
    whole.write([record(start=2)], seen(0, 0), 3600 * SECOND, 1)
    assert used(pods).busy_ns == 3600 * SECOND - MOST_MEASURED_NS


def test_a_driver_that_misses_a_look_has_measured_the_time_by_the_next(pods: Path) -> None:
    whole = WholeGpus(pods)
    for second, observation in enumerate((seen(100, 0), seen(100, 0), silent(), silent(), seen(50, 0))):
        whole.write([record()], observation, second * SECOND, second)
    assert used(pods).busy_ns == 2.5 * SECOND


def test_the_silence_of_one_gpu_changes_nothing_for_another(pods: Path) -> None:
    both = tuple(GivenDevice(uuid, 100, 16384, 0, 7) for uuid in (GPU, "GPU-1"))
    whole = WholeGpus(pods)
    for second in range(61):
        whole.write([replace(record(), devices=both)], Observation(timed=["GPU-1"]), second * SECOND, second)
    read = read_usage(str(volume(pods).parent), "main")
    assert read is not None
    assert [(each.uuid, each.busy_ns) for each in read.devices] == [("GPU-1", 0)]


def test_time_in_which_no_agent_ran_counts_as_used(pods: Path) -> None:
    whole = WholeGpus(pods)
    started = record(start=2)
    whole.go_on([record()], 40 * SECOND, 100 * SECOND, 1)
    whole.write([record()], seen(0, 0), 100 * SECOND, 1)
    assert used(pods).busy_ns == 60 * SECOND - MOST_MEASURED_NS
    whole.write([started], seen(0, 0), 101 * SECOND, 2)
    assert used(pods).busy_ns == 0, "a start after that"


@pytest.mark.parametrize("since_ns", [0, 101 * SECOND], ids=["not known", "later than now"])
def test_an_agent_that_does_not_know_until_when_the_last_one_counted_counts_from_its_start(
    pods: Path, since_ns: int
) -> None:
    whole = WholeGpus(pods)
    whole.go_on([record()], since_ns, 100 * SECOND, 1)
    whole.write([record()], seen(0, 0), 100 * SECOND, 1)
    assert used(pods).busy_ns == 0


def test_a_container_that_starts_again_counts_from_zero_in_an_epoch_of_its_own(pods: Path) -> None:
    whole = WholeGpus(pods)
    whole.write([record()], seen(100, 0), 0, 11)
    whole.write([record()], seen(100, 0), SECOND, 12)
    whole.write([record(start=2)], seen(100, 0), 2 * SECOND, 13)
    read = read_usage(str(volume(pods).parent), "main")
    assert read is not None
    assert (read.epoch_ns, read.devices[0].busy_ns) == (13, 0)


def test_a_clock_that_is_set_back_takes_nothing_from_the_use_nor_counts_it_twice(pods: Path) -> None:
    """The clock says only of which run of the counters a file is; here it loses 9 s between two looks."""
    whole, tally = WholeGpus(pods), Tally()
    for second, start in enumerate((1, 1, 1, 2, 2)):
        whole.write([record(start=start)], seen(100, 0), second * SECOND, (100 - 8 * second) * SECOND)
        tally = advance(tally, read_usage(str(volume(pods).parent), "main"))
    (device,) = tally.devices()
    assert device.busy_ns == 3 * SECOND, "two seconds of the first start, and one of the second"


def test_containers_with_a_shim_are_the_shims(pods: Path) -> None:
    WholeGpus(pods).write([record(whole=False)], seen(100, 0), 0, 0)
    assert list(volume(pods).iterdir()) == []


def test_a_pod_without_the_volume_is_left_alone(tmp_path: Path) -> None:
    WholeGpus(tmp_path).write([record()], seen(100, 0), 0, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "folder by a link"])
def test_nothing_is_written_through_what_a_container_put_there(pods: Path, kind: str) -> None:
    (pods / "outside").mkdir()
    outside = pods / "outside" / "usage"
    outside.write_bytes(b"of the host")
    usage = volume(pods) / "usage"
    if kind == "link":
        usage.symlink_to(outside)
    elif kind == "hard link":
        usage.hardlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(usage)
    elif kind == "folder":
        usage.mkdir()
    else:
        volume(pods).rmdir()
        volume(pods).symlink_to(outside.parent)
    with pytest.raises(OSError, match=r".+"):
        put(pods, record(), b"counted")
    assert outside.read_bytes() == b"of the host"
    WholeGpus(pods).write([record()], seen(100, 0), 0, 0)
    assert outside.read_bytes() == b"of the host"


def test_a_link_that_a_container_put_there_is_logged_once_until_it_is_gone(pods: Path) -> None:
    usage, whole = volume(pods) / "usage", WholeGpus(pods)
    with capture_logs() as logged:
        for _ in range(2):
            usage.symlink_to("/nowhere")
            for _ in range(3):
                whole.write([record()], seen(100, 0), 0, 0)
            usage.unlink()
            whole.write([record()], seen(100, 0), 0, 0)
            usage.unlink()
    assert [each["event"] for each in logged] == ["use not written"] * 2
