#!/bin/sh
# Runs the tests of a real node in namespaces of their own: tools/node.sh VENV [ARGUMENTS OF PYTEST].
# They need root: containers are started. Without it CI fails; elsewhere `make test` says at its end what did not run.
set -eu
venv=$1
shift

not_run=build/not-run/node
mkdir -p build/not-run
rm -f "$not_run"
if [ "$(id -u)" != 0 ] || ! unshare --mount --net --pid --fork true 2>/dev/null; then
    echo "NOT RUN: tests/node, a real kubelet and containerd. It needs root: sudo make node" | tee "$not_run" >&2
    [ -z "${CI:-}" ]
    exit
fi
export FAIRGPU_NODE_NAMESPACES=1

# The whole journey has a node and a control plane of its own: pods of the other tests are placed by the tests.
run() {
    unshare --mount --net --pid --fork --kill-child --mount-proc "$venv/bin/pytest" -p no:schemathesis \
        --durations=10 --durations-min=1 "$@"
}
run "$@" --ignore=tests/node/journey tests/node
run "$@" tests/node/journey

# The demonstration with a node takes another minute or two: only continuous integration runs it.
if [ -n "${CI:-}" ]; then
    sh tools/demo_cluster.sh "$venv"
fi
