"""A node of its own for one test session: containerd and kubelet on their usual paths, in namespaces of the session.

`make node` starts pytest in new mount, network and PID namespaces. In there /run is a tmpfs, and /var/lib and /var/log
lie in a folder of the session: everything has the paths that it has in production, nothing of the machine is touched,
and all processes end with the session.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.build import built, control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.identities import Identity, write_kubeconfig
from tests.cluster.control_plane.processes import Restartable, running
from tests.cluster.installation import apply
from tests.node import images
from tests.node.binaries import NODE
from tests.support.processes import FAIRGPU
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
VCUDA = ROOT / "vcuda" / "build"
DRIVER = VCUDA / "simgpu" / "13"
SHIM = VCUDA / "libvcuda.so.1"
ACTOR = VCUDA / "tests" / "actor"

NAMESPACES = "FAIRGPU_NODE_NAMESPACES"
"""Set to 1 where this process has mount, network and PID namespaces of its own."""
ADDRESS = "10.99.0.1"
PODS = "10.99.1.0/24"
NAME = "gpu-node"
ACCOUNT = "/api/v1/namespaces/fairgpu-nodes/serviceaccounts/fairgpu-nodeagent"
PAUSE = "fairgpu.test/pause:1"
PROGRAMS = "fairgpu.test/programs:1"
OWN_PRELOAD = "fairgpu.test/own-preload:1"
"""The same programs in an image with a preload file of its own, and a folder where the agent's files go."""
SIMULATED = Path("/run/simgpu")
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")
CHECKPOINT = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
LIBRARIES = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
MEMORY_MIB = 16384
QUICK = {
    "FAIRGPU_NODEAGENT_LOOK_SECONDS": "1",
    "FAIRGPU_NODEAGENT_RECOVER_SECONDS": "2",
    "FAIRGPU_NODEAGENT_UNSLOTTED_PROCESSES": "kill",
}
"""Settings of an agent whose looks and whose patience a test does not wait long for."""


def lay_out(folder: Path) -> None:
    """Gives the session's own namespaces their folders and address; before anything else is started in them.

    Raises:
        RuntimeError: this process has no namespaces of its own.
    """
    if os.environ.get(NAMESPACES) != "1":
        raise RuntimeError("these tests want namespaces of their own: run `make node` as root")
    for path, target in ((folder / "lib", "/var/lib"), (folder / "log", "/var/log")):
        path.mkdir()
        _run("mount", "--bind", path, target)
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")


def uuid(number: int) -> str:
    """The uuid of a simulated GPU."""
    return f"GPU-53494d47-5055-0000-0000-{number:012x}"


@dataclass
class Machine:
    """A node whose parts a test can end and start again.

    Attributes:
        folder: of the session.
        binaries: where kubelet, containerd and the others are.
        runc: the distribution's.
        plane: the control plane that the kubelet registers with.
        gpus: how many simulated GPUs it has.
        memory_mib: the memory of each.
        agent: the account of this node's agent.
        gpu_lines: what is the matter with the simulated GPUs.
    """

    folder: Path
    binaries: Path
    runc: Path
    plane: ControlPlane
    gpus: int = 2
    memory_mib: int = MEMORY_MIB
    agent: Identity = field(init=False)
    gpu_lines: tuple[str, ...] = ()
    servers: dict[str, Restartable] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every process of the node."""
        return {"PATH": f"{self.binaries}:{self.runc.parent}:{os.environ['PATH']}", "HOME": str(self.folder)}

    @property
    def static_pods(self) -> Path:
        """The folder in which the kubelet looks for pods that no API server has."""
        return self.folder / "static"

    @property
    def runtime_socket(self) -> Path:
        """A link to containerd's socket, by which the agent asks it: a test can take it away."""
        return self.folder / "runtime.sock"

    def node(self) -> dict[str, Any]:
        """The Node as the API server has it."""
        return self.plane.admin.api.get(f"/api/v1/nodes/{NAME}")

    def allocatable(self, name: str) -> str:
        """Returns the node's allocatable amount of `fairgpu.io/NAME`, by the kubelet; 0 where it names none."""
        shown: str = self.node()["status"].get("allocatable", {}).get(f"fairgpu.io/{name}", "0")
        return shown

    def registered_since(self, seconds: float) -> bool:
        """Returns whether the device plugin has given the kubelet slots since that time: then it admits GPU pods.

        The kubelet writes its checkpoint when it has a plugin's list of devices, and before its Node says so; an agent
        that starts offers none at first. It writes it at each allocation, too: no pod may have come since that time.
        """
        if not CHECKPOINT.exists() or CHECKPOINT.stat().st_mtime <= seconds:
            return False
        slots = json.loads(CHECKPOINT.read_bytes())["Data"]["RegisteredDevices"] or {}
        return bool(slots.get("fairgpu.io/gpu"))

    def is_ready(self) -> bool:
        """Whether the node takes pods; raises RuntimeError with the end of its log if a part ended by itself."""
        for server in self.servers.values():
            server.process.check_alive()
        if not self.plane.exists(f"/api/v1/nodes/{NAME}"):
            return False
        conditions = self.node()["status"].get("conditions", [])
        ready = [each["status"] for each in conditions if each["type"] == "Ready"]
        return ready == ["True"] and all(self.allocatable(name) != "0" for name in ("gpu", "gpu-core", "gpu-memory"))

    def log(self, server: str) -> str:
        """The end of what a server has said."""
        return (self.folder / f"{server}.log").read_text(errors="replace")[-6000:]

    def start(self, name: str, command: Sequence[str | Path], stack: ExitStack, **environment: str) -> None:
        """Starts a part of the node."""
        run = partial(running, name, command, self.folder / f"{name}.log", self.environment | environment, 10.0)
        self.servers[name] = stack.enter_context(Restartable(run))

    def import_image(self, path: Path) -> None:
        """Makes an image known to the kubelet's runtime."""
        ctr = [self.binaries / "ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io"]
        _run(*ctr, "images", "import", path)

    def make_gpus(self, *lines: str) -> None:
        """Makes these lines all that is the matter with the simulated GPUs (vcuda/simgpu/README.md)."""
        self.gpu_lines = lines
        control = SIMULATED / "node" / "control"
        beside = control.with_suffix(".new")
        beside.write_text("".join(f"{line}\n" for line in lines))
        beside.replace(control)

    def runtime_answers(self) -> bool:
        """Whether containerd takes calls."""
        ctr = [self.binaries / "ctr", "--address", CONTAINERD_SOCKET, "version"]
        return subprocess.run(ctr, capture_output=True, check=False).returncode == 0


@contextmanager
def running_node(
    folder: Path,
    prepare: Callable[[ControlPlane], object] = lambda _: None,
    gpus: int = 2,
    memory_mib: int = MEMORY_MIB,
    settings: Mapping[str, str] = QUICK,
    *,
    audited: bool = False,
) -> Iterator[Machine]:
    """A node with simulated GPUs, in the namespaces that `make node` gives this process.

    `prepare` is called with the control plane before the node joins; `settings` are the agent's own, by their
    variables; `audited` says whether the API server writes a line for each request.
    """
    lay_out(folder)
    with running_control_plane(control_plane_binaries(os.environ), audited=audited) as plane:
        prepare(plane)
        with joined_node(folder, plane, gpus, memory_mib, settings) as machine:
            yield machine


@contextmanager
def joined_node(
    folder: Path,
    plane: ControlPlane,
    gpus: int = 2,
    memory_mib: int = MEMORY_MIB,
    settings: Mapping[str, str] = QUICK,
) -> Iterator[Machine]:
    """A node of a control plane that runs, once it is ready, with its simulated GPUs and the node agent on it."""
    runc = shutil.which("runc") or str(Path(sys.executable).with_name("runc"))
    machine = Machine(folder, built(NODE, os.environ), Path(runc), plane, gpus, memory_mib)
    with ExitStack() as stack:
        _start_containerd(machine, stack)
        _start_kubelet(machine, stack)
        wait_until(lambda: machine.plane.exists(f"/api/v1/nodes/{NAME}"), "the kubelet registers its node")
        _install(machine)
        _start_agent(machine, settings, stack)
        wait_until(machine.is_ready, "the node is ready and offers its GPUs")
        yield machine


def _start_containerd(machine: Machine, stack: ExitStack) -> None:
    networks = machine.folder / "cni"
    networks.mkdir()
    network = {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {"type": "host-local", "subnet": PODS, "routes": [{"dst": "0.0.0.0/0"}]},
            }
        ],
    }
    (networks / "10-pods.conflist").write_text(json.dumps(network))
    configure_containerd(machine)
    machine.start("containerd", [machine.binaries / "containerd", "--config", _containerd_toml(machine)], stack)
    wait_until(CONTAINERD_SOCKET.exists, "containerd listens")
    wait_until(lambda: _imported(machine), "containerd takes images")


def _containerd_toml(machine: Machine) -> Path:
    return machine.folder / "containerd.toml"


def configure_containerd(machine: Machine, *, cdi: bool = True, default: Path | None = None) -> None:
    """Writes containerd's configuration; it holds from containerd's next start.

    `cdi` switches CDI on or off; `default` is the default runtime's program, if it is another than runc's.
    """
    _containerd_toml(machine).write_text(
        f"""version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{PAUSE}'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  enable_cdi = {str(cdi).lower()}
  cdi_spec_dirs = ['/var/run/cdi']
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '{default or machine.runc}'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
      BinaryName = '{machine.runc}'
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{machine.binaries}']
    conf_dir = '{machine.folder / "cni"}'
"""
    )


def _imported(machine: Machine) -> bool:
    machine.servers["containerd"].process.check_alive()
    try:
        pause = {"pause": images.pause(machine.folder)}
        machine.import_image(images.image(machine.folder / "pause.tar", PAUSE, ["/pause"], pause))
        shell = {f"bin/{name}": Path("/bin") / name for name in ("sh", "cat", "cp", "env", "mv", "sleep")}
        programs = shell | {"usr/bin/actor": ACTOR} | images.round_the_shim(machine.folder)
        machine.import_image(images.image(machine.folder / "programs.tar", PROGRAMS, ["/bin/sh"], programs))
        (machine.folder / "ld.so.preload").write_text("/nowhere/of-the-image.so\n")
        (machine.folder / "note").write_text("of the image\n")
        own = {"etc/ld.so.preload": machine.folder / "ld.so.preload", "etc/vcuda/note": machine.folder / "note"}
        image = images.image(machine.folder / "own-preload.tar", OWN_PRELOAD, ["/bin/sh"], programs | own)
        machine.import_image(image)
    except subprocess.CalledProcessError:
        return False
    return True


def _start_kubelet(machine: Machine, stack: ExitStack) -> None:
    group = f"/fairgpu-node-{os.getpid()}-{time.time_ns()}"
    for hierarchy in _hierarchies():
        folder = hierarchy / group.lstrip("/")
        folder.mkdir()
        stack.callback(wait_until, partial(_removed, folder), f"{folder} is gone")
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "clusterDNS": [ADDRESS],
        "clusterDomain": "cluster.local",
        "cgroupRoot": group,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "1Mi"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "2s",
        "oomScoreAdj": 0,
        "readOnlyPort": 0,
        "staticPodPath": str(machine.static_pods),
        "resolvConf": "",
        "syncFrequency": "5s",
    }
    machine.static_pods.mkdir()
    file = machine.folder / "kubelet.yaml"
    file.write_text(yaml.safe_dump(configuration))
    account = machine.plane.node(NAME).kubeconfig
    kubelet = [machine.binaries / "kubelet", f"--config={file}", f"--kubeconfig={account}", f"--node-ip={ADDRESS}"]
    machine.start("kubelet", [*kubelet, f"--hostname-override={NAME}", "--v=2"], stack)


def _install(machine: Machine) -> None:
    """Applies what deploy/nodes ships, and gives the agent a token of its account that names this node.

    No node has the label that the DaemonSet asks for: the agent runs beside the kubelet, not in a pod.
    """
    plane = machine.plane
    apply(plane, yaml.safe_load_all(plane.admin.kubectl("kustomize", str(ROOT / "deploy" / "nodes")).stdout))
    wait_until(lambda: plane.exists(ACCOUNT), "the agent's account is there")
    spec = {
        "serviceAccountName": "fairgpu-nodeagent",
        "nodeName": NAME,
        "containers": [{"name": "nodeagent", "image": "fairgpu.invalid/nodeagent:0.1.0", "imagePullPolicy": "Never"}],
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"}, "spec": spec}
    pod = plane.admin.api.create("/api/v1/namespaces/fairgpu-nodes/pods", body)
    token = plane.token("fairgpu-nodes", "fairgpu-nodeagent", pod=pod)
    path = machine.folder / "agent.kubeconfig"
    write_kubeconfig(path, plane.server, plane.certificate_authority, token)
    machine.agent = Identity("the agent", path, plane.kubectl_binary)
    probe = {"metadata": {"labels": {"probe": "policy"}}}
    wait_until(lambda: _refused(machine, probe), "the policy fairgpu-nodeagent is in force")


def _refused(machine: Machine, patch: Any) -> bool:
    try:
        machine.agent.api.patch(f"/api/v1/nodes/{NAME}", patch, query={"dryRun": "All"})
    except ApiError as error:
        return "fairgpu-nodeagent" in error.message and "ValidatingAdmissionPolicy" in error.message
    return False


def _start_agent(machine: Machine, chosen: Mapping[str, str], stack: ExitStack) -> None:
    vendor = machine.folder / "cdi"
    vendor.mkdir()
    (vendor / "nvidia.json").write_text(json.dumps(vendor_spec(machine.gpus)))
    SIMULATED.mkdir()
    machine.runtime_socket.symlink_to(CONTAINERD_SOCKET)
    settings = {
        "FAIRGPU_NODEAGENT_NODE": NAME,
        "FAIRGPU_NODEAGENT_SHIM": str(SHIM),
        "FAIRGPU_NODEAGENT_RUNTIME_SOCKET": str(machine.runtime_socket),
        "FAIRGPU_NODEAGENT_VENDOR_CDI_FOLDERS": f"[{vendor}]",
        "KUBECONFIG": str(machine.agent.kubeconfig),
        "LD_LIBRARY_PATH": str(DRIVER),
        "SIMGPU_DIR": str(SIMULATED / "node"),
        "SIMGPU_DEVICES": str(machine.gpus),
        "SIMGPU_MEMORY_MIB": str(machine.memory_mib),
    }
    command = [*FAIRGPU, "nodeagent", "serve"]
    machine.start("agent", command, stack, **settings, **chosen)


def vendor_spec(gpus: int) -> dict[str, Any]:
    """Returns the CDI spec that NVIDIA's toolkit would write: the driver's libraries, and those of each GPU."""
    libraries = [
        {"hostPath": str(DRIVER / name), "containerPath": f"{LIBRARIES}/{name}", "options": ["ro", "rbind"]}
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    ]
    node = {"hostPath": str(SIMULATED), "containerPath": str(SIMULATED), "options": ["rw", "rbind"]}
    return {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": {"mounts": [*libraries, node], "env": [f"SIMGPU_DIR={SIMULATED}/node"]},
        "devices": [
            {"name": uuid(number), "containerEdits": {"env": [f"SIMULATED_GPU={number}"]}} for number in range(gpus)
        ],
    }


def _hierarchies() -> list[Path]:
    """The folders of the cgroups: one folder of version 2, or one for each controller of version 1."""
    top = Path("/sys/fs/cgroup")
    return [top] if (top / "cgroup.controllers").exists() else [path for path in top.iterdir() if path.is_dir()]


def _removed(folder: Path) -> bool:
    """Whether a cgroup of this session is gone, after ending what still runs in it and in those below it."""
    for path, _, _ in os.walk(folder, topdown=False):
        group = Path(path)
        with suppress(OSError):  # a process or a group that has just gone, or one that is still going
            for pid in (group / "cgroup.procs").read_text().split():
                if pid != "0":  # a process of another PID namespace
                    os.kill(int(pid), signal.SIGKILL)
            group.rmdir()
    return not folder.exists()


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)
