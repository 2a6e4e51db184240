"""The node agent's figures on a real kubelet and containerd. It needs root, as `make node` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
UNSHARED = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def rows() -> Iterator[dict[str, Any]]:
    """Builds a node, and hands on the rows of tests/node/figures.py as they come; none where this user is not root."""
    if os.geteuid() != 0:
        print("node: not measured, a real kubelet needs root", file=sys.stderr)
        return
    venv = Path(sys.prefix)
    subprocess.run(["sh", "tools/runc.sh", venv], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    for module in ("tests.cluster.control_plane.build", "tests.node.binaries"):
        subprocess.run([sys.executable, "-m", module], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    make = ["make", "-s", "-C", "vcuda", "all", "build/tests/actor", "bench-programs", f"PYTHON={sys.executable}"]
    subprocess.run(make, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    command = [*UNSHARED, sys.executable, "-m", "tests.node.figures"]
    environment = os.environ | {"FAIRGPU_NODE_NAMESPACES": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
