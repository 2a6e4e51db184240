#!/bin/sh
# Runs the demonstration on a real control plane: tools/demo_cluster.sh VENV. As root its pods run on a real kubelet and
# containerd, in namespaces of their own; otherwise the demonstration plays the node.
set -eu
venv=$1

if [ "$(id -u)" != 0 ] || ! unshare --mount --net --pid --fork true 2>/dev/null; then
    exec "$venv/bin/python" -m tests.cluster.demonstration
fi
sh tools/runc.sh "$venv"
"$venv/bin/python" -m tests.cluster.control_plane.build >/dev/null
"$venv/bin/python" -m tests.node.binaries >/dev/null
make -s -C vcuda all simgpu build/tests/actor PYTHON="$(readlink -f "$venv")/bin/python"
# What the pods had mounted goes with the namespaces, and their files can be removed after that.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
FAIRGPU_NODE_NAMESPACES=1 unshare --mount --net --pid --fork --kill-child --mount-proc \
    "$venv/bin/python" -m tests.cluster.demonstration
