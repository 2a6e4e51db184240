"""Every form of a call in functions.def is one that NVIDIA's own table of versions knows, with its twin.

python check_functions.py functions.def cudaTypedefs.h [cudaTypedefs.h of another release ...]
"""

import re
import sys
from pathlib import Path

ROW = re.compile(r"^([FP])\((\w+), (\d+), (\w+?)(?:, (_pts[zd]|_ptds))?\)", re.MULTILINE)
TYPE = re.compile(r"\bPFN_(\w+?)_v(\d+)(_ptsz|_ptds)?\b")
RENAMED = {("cuGraphInstantiate", "12000")}  # from 12 on, cuda.h gives this name to cuGraphInstantiateWithFlags
OLDEST_TWIN = 7000  # per-thread default streams came with CUDA 7


def main() -> None:
    """Compares the table with the headers; says what is wrong and exits with 1."""
    table, *headers = (Path(argument) for argument in sys.argv[1:])
    known = {match.groups(default="") for header in headers for match in TYPE.finditer(header.read_text())}
    faults = []
    for kind, name, since, _, suffix in ROW.findall(table.read_text()):
        if (name, since, "") not in known and (name, since) not in RENAMED:
            faults.append(f"{name} {since}: no such form")
        twin = (name, str(max(int(since), OLDEST_TWIN)), suffix)
        if kind == "P" and twin not in known:
            faults.append(f"{name} {since}: no twin {suffix}")
    if faults:
        sys.exit("\n".join(["not so: the table of functions is NVIDIA's", *faults]))
    sys.stdout.write("ok   the_table_of_functions_is_nvidias\n")


if __name__ == "__main__":
    main()
