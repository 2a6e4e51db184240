#!/bin/sh
# The first process of the kernel that tools/node_v2.sh starts. It makes what a booted machine has, with its controllers on
# cgroup v2, and runs the command in $SHARED/command there. It leaves its status in $SHARED/status.
set -eu
trap 'echo o >/proc/sysrq-trigger; sleep 60' EXIT

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /dev/shm /run /tmp /var/tmp; do
    mount -t tmpfs tmpfs $folder
done

# The binaries of the tests, which no longer show where the home folder lies below /tmp.
mkdir -p "${KERNEL%/*}"
mount -t hostfs -o "${KERNEL%/*},ro" hostfs "${KERNEL%/*}"
# All of the machine can be read. Only these folders can be written.
for folder in "$PROJECT" "$SHARED"; do
    mkdir -p "$folder"
    mount -t hostfs -o "$folder" hostfs "$folder"
done
cd "$PROJECT"
. "$SHARED/environment"
unset TMPDIR
"$VENV/bin/python" - "$KERNEL"/*.ko <<'END'
import ctypes, os, sys
for module in sys.argv[1:]:
    if ctypes.CDLL(None, use_errno=True).syscall(313, os.open(module, os.O_RDONLY), b"", 0):  # finit_module on x86-64
        sys.exit(f"{module}: {os.strerror(ctypes.get_errno())}")
END

ip link set lo up
echo node >/proc/sys/kernel/hostname
# As systemd does: a kubelet takes no cgroup without these.
echo "+cpu +io +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
# The kubelet does not start without a clock speed, and this kernel names none.
mount -t tmpfs tmpfs /sys/devices/system/cpu
mkdir -p /sys/devices/system/cpu/cpu0/cpufreq
echo 1000000 >/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq
for list in online possible present; do
    echo 0 >/sys/devices/system/cpu/$list
done

status=0
sh "$SHARED/command" || status=$?
echo $status >"$SHARED/status"
