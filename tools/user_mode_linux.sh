#!/bin/sh
# Sees to a kernel that runs as an ordinary process, and prints its folder: tools/user_mode_linux.sh. It and its modules
# come out of Debian's package user-mode-linux, which is not installed.
set -eu

cache=${XDG_CACHE_HOME:-$HOME/.cache}/fairgpu/user-mode-linux
if [ -x "$cache/linux.uml" ]; then
    echo "$cache"
    exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fetch() (
    cd "$folder" && apt-get download -qq user-mode-linux 2>/dev/null
)

if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    fetch || { [ "$(id -u)" = 0 ] && apt-get update -qq >/dev/null && fetch; } || true
fi
if ! ls "$folder"/user-mode-linux_*.deb >/dev/null 2>&1; then
    echo "The node's tests on cgroup v2 need Debian's package user-mode-linux, for x86-64. Run: sudo apt-get update" >&2
    exit 1
fi
echo "taking a kernel from Debian's package user-mode-linux" >&2
dpkg-deb --fsys-tarfile "$folder"/user-mode-linux_*.deb | tar -x -C "$folder" ./usr/bin ./usr/lib/uml
mkdir -p "$cache"
# containerd's snapshots and the network of pods. Debian builds both as modules. The kernel comes last: where it is, all is.
for module in fs/overlayfs/overlay drivers/net/veth; do
    cp "$folder"/usr/lib/uml/modules/*/kernel/$module.ko "$cache/"
done
cp "$folder/usr/bin/linux.uml" "$cache/linux.uml.new"
mv "$cache/linux.uml.new" "$cache/linux.uml"
echo "$cache"
