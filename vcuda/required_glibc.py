"""Says whether libraries run on an old C library: no symbol newer than a release of glibc, and libdl by name.

    python required_glibc.py 2.17 LIBRARY...

Before glibc 2.34 dlopen lived in libdl.so.2: a library that looks for the loader's functions there has to ask for it.
"""

import re
import subprocess
import sys


def faults(library: str, ceiling: tuple[int, ...]) -> list[str]:
    """Returns the reasons for which the library cannot run there, one line each."""
    command = ["readelf", "-dV", "-W", library]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = [
        f"{library} needs GLIBC_{version}"
        for version in sorted(set(re.findall(r"GLIBC_([0-9.]+)", report)))
        if tuple(int(part) for part in version.split(".")) > ceiling
    ]
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", report))
    if "libdl.so.2" not in needed:
        found.append(f"{library} does not ask for libdl.so.2")
    others = {name for name in needed if not re.match(r"lib(c|dl|pthread)\.so|ld-linux", name)}
    if others:
        found.append(f"{library} needs {', '.join(sorted(others))}")
    return found


def main() -> int:
    """Checks the libraries named on the command line."""
    ceiling = tuple(int(part) for part in sys.argv[1].split("."))
    found = [fault for library in sys.argv[2:] for fault in faults(library, ceiling)]
    for fault in found:
        sys.stdout.write(f"{fault}\n")
    if not found:
        sys.stdout.write(f"{len(sys.argv) - 2} libraries run with glibc {sys.argv[1]}\n")
    return len(found) != 0


if __name__ == "__main__":
    sys.exit(main())
