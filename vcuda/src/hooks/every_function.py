"""Compares the functions of NVIDIA's headers with those that the shim stands before or passes on.

    python every_function.py HEADERS hooks.def not_hooked.def

Ends with 1 and names them where a header has a function that neither table has, or a table one that no header has.
"""

import re
import sys
from pathlib import Path

DECLARED = re.compile(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(")
RENAMED = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*)\s*$", re.MULTILINE)
TWIN = re.compile(r"__CUDA_API_(PTSZ|PTDS)\((cu[A-Z]\w*)\)")
LISTED = re.compile(r"^(?:HOOK|PASSED|HARMLESS)\((cu\w+)\)$", re.MULTILINE)


def functions(header: str) -> set[str]:
    """The exported names in the text of a cuda.h, each form and each twin for default streams of threads by itself."""
    twins = {name + "_" + kind.lower() for kind, name in TWIN.findall(header)}
    return set(DECLARED.findall(header)) | set(RENAMED.findall(header)) | twins


def faults(headers: set[str], tables: list[str]) -> list[str]:
    """Returns the names that are in one of the two alone, or twice in the tables, as lines to print."""
    listed = [name for table in tables for name in LISTED.findall(table)]
    twice = sorted({name for name in listed if listed.count(name) > 1})
    return [
        *(f"{name}: of a header, and in no table: hook it, or say in not_hooked.def why not" for name in
          sorted(headers - set(listed))),
        *(f"{name}: in a table, and of no header" for name in sorted(set(listed) - headers)),
        *(f"{name}: in the tables twice" for name in twice),
    ]  # fmt: skip


def main() -> None:
    """Compares the files that the command line names."""
    folder, *tables = (Path(argument) for argument in sys.argv[1:])
    found = {name for header in folder.glob("*/cuda.h") for name in functions(header.read_text(errors="replace"))}
    wrong = faults(found, [table.read_text(encoding="utf-8") for table in tables])
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    sys.exit(1 if wrong or not found else 0)


if __name__ == "__main__":
    main()
