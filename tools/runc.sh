#!/bin/sh
# Sees to runc, with which the node's tests start containers: tools/runc.sh VENV. It comes out of Debian's package runc,
# which is not installed. (Built from its Go module it would lack libseccomp, and could start no sandbox of a kubelet.)
set -eu
venv=$1

if command -v runc >/dev/null || [ -x "$venv/bin/runc" ]; then
    exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fetch() (
    cd "$folder" && apt-get download -qq runc 2>/dev/null
)

if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    fetch || { [ "$(id -u)" = 0 ] && apt-get update -qq >/dev/null && fetch; } || true
fi
if ! ls "$folder"/runc_*.deb >/dev/null 2>&1; then
    echo "The node's tests start containers with runc. Put it on the PATH, or run: sudo apt-get update" >&2
    exit 1
fi
echo "taking runc from Debian's package runc"
dpkg-deb --fsys-tarfile "$folder"/runc_*.deb | tar -x -C "$folder" ./usr/sbin/runc
"$folder/usr/sbin/runc" --version >/dev/null || {
    echo "runc needs libseccomp. Install it with: sudo apt-get install libseccomp2" >&2
    exit 1
}
mv "$folder/usr/sbin/runc" "$venv/bin/runc"
