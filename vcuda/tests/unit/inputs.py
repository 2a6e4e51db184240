"""Inputs of a fuzzer as one file of text, a line of hexadecimal digits each, so that what was found stays found.

python inputs.py unpack FILE FOLDER     a file for each, for libFuzzer to begin with
python inputs.py pack FOLDER FILE       the other way, the shortest first
"""

import sys
from hashlib import sha256
from pathlib import Path


def unpack(file: Path, folder: Path) -> None:
    """Writes each input to a file that is named by what is in it."""
    for line in file.read_text(encoding="ascii").splitlines():
        data = bytes.fromhex(line)
        (folder / sha256(data).hexdigest()).write_bytes(data)


def pack(folder: Path, file: Path) -> None:
    """Writes the inputs of a folder as lines."""
    inputs = sorted({one.read_bytes() for one in folder.iterdir()}, key=lambda data: (len(data), data))
    file.write_text("".join(f"{data.hex()}\n" for data in inputs), encoding="ascii")


if __name__ == "__main__":
    {"unpack": unpack, "pack": pack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
