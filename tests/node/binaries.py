"""The binaries of a node beside the control plane's; `python -m tests.node.binaries` compiles them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.cluster.control_plane.build import KUBERNETES, Build, ControlPlaneBinariesError, built

CONTAINERD = "github.com/containerd/containerd/v2/cmd"
PLUGINS = "github.com/containernetworking/plugins/plugins"
APIS = "pkg/apis"

NODE = Build(
    what=f"a node: kubelet {KUBERNETES}, containerd, CNI plugins",
    go_module=Path(__file__).with_name("go.mod"),
    cache="node",
    environment_key="FAIRGPU_NODE_BIN",
    tools={
        "kubelet": "k8s.io/kubernetes/cmd/kubelet",
        "containerd": f"{CONTAINERD}/containerd",
        "containerd-shim-runc-v2": f"{CONTAINERD}/containerd-shim-runc-v2",
        "ctr": f"{CONTAINERD}/ctr",
        "ptp": f"{PLUGINS}/main/ptp",
        "loopback": f"{PLUGINS}/main/loopback",
        "host-local": f"{PLUGINS}/ipam/host-local",
    },
    files={
        "deviceplugin.proto": ("k8s.io/kubelet", f"{APIS}/deviceplugin/v1beta1/api.proto"),
        "podresources.proto": ("k8s.io/kubelet", f"{APIS}/podresources/v1/api.proto"),
        "cri.proto": ("k8s.io/cri-api", f"{APIS}/runtime/v1/api.proto"),
    },
)

if __name__ == "__main__":
    try:
        sys.stdout.write(f"{built(NODE, os.environ)}\n")
    except ControlPlaneBinariesError as error:
        sys.exit(str(error))
