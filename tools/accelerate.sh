#!/bin/sh
# Builds the packages with what setup.py compiles for the services into a tree of their own: tools/accelerate.sh PYTHON FOLDER.
# Who puts the folder before everything else on PYTHONPATH runs what the images run.
set -eu
python=$1
folder=$2

rm -rf "$folder"
mkdir -p "$folder"
if ! command -v gcc >/dev/null || "$python" -c 'import pathlib, sys, sysconfig; sys.exit(pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'; then
    echo "no compiler or no Python.h: the services are not compiled here, and run as they are" >&2
    exit 0
fi
FAIRGPU_COMPILE="webhook timekeeper scheduler" "$python" setup.py --quiet build --build-lib "$folder" --build-temp "$folder.objects" >"$folder.log" 2>&1 || {
    cat "$folder.log" >&2
    exit 1
}
PYTHONPATH=$folder "$python" -P -c 'import webhook.admission.review as module; assert module.__file__.endswith(".so"), module.__file__'
