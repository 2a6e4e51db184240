#!/bin/sh
# Sees to promtool, which checks the alert rules: tools/promtool.sh VENV. It comes out of Debian's package prometheus,
# which is not installed: that would start a Prometheus.
set -eu
venv=$1

if command -v promtool >/dev/null || [ -x "$venv/bin/promtool" ]; then
    exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fetch() (
    cd "$folder" && apt-get download -qq prometheus 2>/dev/null
)

if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    fetch || { [ "$(id -u)" = 0 ] && apt-get update -qq >/dev/null && fetch; } || true
fi
if ! ls "$folder"/prometheus_*.deb >/dev/null 2>&1; then
    echo "The alert rules are checked with promtool. Put it on the PATH, or run: sudo apt-get update" >&2
    exit 1
fi
echo "taking promtool from Debian's package prometheus"
dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -x -C "$folder" ./usr/bin/promtool
mv "$folder/usr/bin/promtool" "$venv/bin/promtool"
