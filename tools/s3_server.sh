#!/bin/sh
# Sees to an S3-compatible server for tests: tools/s3_server.sh VENV. It is moto's, in an environment of its own beside
# the tests': it holds back python-dateutil.
set -eu
venv=$1
here=$(dirname "$0")

exec 9>"$venv/s3-server.lock"  # tests that run side by side ask for it at once
flock 9
if [ "$venv/s3-server/.installed" -nt "$here/s3-server.lock" ]; then
    exit 0
fi
"$venv/bin/python" -m venv --clear "$venv/s3-server"
"$venv/s3-server/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
    --requirement "$here/s3-server.lock"
touch "$venv/s3-server/.installed"
