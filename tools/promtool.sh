#!/bin/sh
# Sees to promtool, which checks the alert rules, and to prometheus, which a test asks: tools/promtool.sh VENV. They come
# out of Debian's package prometheus, which is not installed: that would start a Prometheus.
set -eu
venv=$1

missing=
for program in promtool prometheus; do
    command -v "$program" >/dev/null || [ -x "$venv/bin/$program" ] || missing="$missing $program"
done
[ -n "$missing" ] || exit 0

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fetch() (
    cd "$folder" && apt-get download -qq prometheus 2>/dev/null
)

if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
    fetch || { [ "$(id -u)" = 0 ] && apt-get update -qq >/dev/null && fetch; } || true
fi
if ! ls "$folder"/prometheus_*.deb >/dev/null 2>&1; then
    echo "The tests need$missing. Put them on the PATH, or run: sudo apt-get update" >&2
    exit 1
fi
for program in $missing; do
    echo "taking $program from Debian's package prometheus"
    dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -x -C "$folder" "./usr/bin/$program"
    mv "$folder/usr/bin/$program" "$venv/bin/$program"
done
