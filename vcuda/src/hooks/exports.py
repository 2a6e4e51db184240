"""Writes the linker's export map from the tables of hooks.

    python exports.py hooks.def nvml_hooks.def > exports.map

The version node is anonymous: with a name, the loader would no longer take our dlsym for the C library's.
"""

import re
import sys
from pathlib import Path


def main() -> None:
    """Prints the map of all HOOK(name) rows of the files named on the command line, and dlsym and dlvsym."""
    names = ["dlsym", "dlvsym"]
    for path in sys.argv[1:]:
        names += re.findall(r"^HOOK\((\w+)\)$", Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    lines = "".join(f"    {name};\n" for name in sorted(names))
    sys.stdout.write(f"{{\n  global:\n{lines}  local:\n    *;\n}};\n")


if __name__ == "__main__":
    main()
