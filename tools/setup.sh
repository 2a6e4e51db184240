#!/bin/sh
# Makes the virtual environment from the lock file: tools/setup.sh PYTHON FOLDER.
set -eu
python=$1
venv=$2

"$python" - <<'CHECK' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"fairgpu needs python3 >= 3.11; {sys.executable} is {sys.version.split()[0]}. Name another with: make PYTHON=/path/to/python3")
CHECK

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing python3-venv"
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv; } >/dev/null
    else
        echo "python3 has no venv module. Install it with: sudo apt-get install python3-venv" >&2
        exit 1
    fi
fi

echo "setting up $venv, which takes a minute or two and 640 MB"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

# gunicorn's parser in C has to be compiled; without it gunicorn uses its parser in Python.
if "$venv/bin/python" -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'; then
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --require-hashes \
        --requirement tools/accelerated.lock || echo "gunicorn's parser in C could not be compiled; going on without it" >&2
fi
