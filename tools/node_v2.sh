#!/bin/sh
# Runs tests of a real node on cgroups of version 2, whatever version this machine has: tools/node_v2.sh VENV [ARGUMENTS
# OF PYTEST]. They run under a kernel of their own, which is an ordinary process: no KVM, and this machine's cgroups are
# left alone. Without arguments the tests run that a version of cgroups can matter to.
set -eu
venv=$1
shift
[ $# -gt 0 ] || set -- -m cgroups --ignore=tests/node/journey tests/node

kernel=$(sh tools/user_mode_linux.sh)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export FAIRGPU_NODE_NAMESPACES=1 VENV="$venv"
# Each system call there costs two switches between processes here: a busy machine slows it down beyond measure.
export FAIRGPU_PATIENCE=4
export -p >"$folder/environment"
"$venv/bin/python" -c 'import shlex, sys; print(shlex.join(sys.argv[1:]))' \
    unshare --mount --net --pid --fork --kill-child --mount-proc "$venv/bin/pytest" -p no:schemathesis -p no:cacheprovider \
    $([ -t 1 ] || echo --color=no) --durations=10 --durations-min=1 "$@" >"$folder/command"

# The kernel keeps its memory in a file, of which it fills what it uses: on a disk it would be written back again and again.
memory_mib=4096
memory=/dev/shm
[ "$(df --output=avail -m "$memory" 2>/dev/null | tail -n 1)" -ge $memory_mib ] 2>/dev/null || memory=$folder

# The console is what the tests print; what the kernel says for itself is shown where it does not get as far. A kernel that
# hangs ends, too.
TMPDIR=$memory timeout --kill-after=10 30m "$kernel/linux.uml" mem=${memory_mib}M quiet con=null con0=null,fd:3 \
    root=none rootfstype=hostfs rootflags=/ ro init="$PWD/tools/node_v2_init.sh" \
    KERNEL="$kernel" PROJECT="$PWD" SHARED="$folder" 3>&1 </dev/null >"$folder/kernel" 2>&1 || true
if [ ! -s "$folder/status" ]; then
    cat "$folder/kernel" >&2
    exit 1
fi
exit "$(cat "$folder/status")"
