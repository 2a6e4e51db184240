#!/bin/sh
# Puts wrk, the client that the benchmarks load servers with, onto the machine.
set -eu

command -v wrk >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing wrk"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends wrk; } >/dev/null
else
    echo "The benchmarks need wrk. Install it with: sudo apt-get install wrk" >&2
    exit 1
fi
