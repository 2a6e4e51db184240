"""`make gpu` runs with the Python of machines with GPUs, 3.9 (RHEL 9) or 3.10 (Ubuntu 22.04), and with no package."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

VCUDA = Path(__file__).resolve().parent.parent
FOLDERS = (VCUDA / "tests" / "gpu", VCUDA / "tests", VCUDA / "bench", VCUDA / "simgpu", VCUDA.parent)
OLDEST = (3, 9)
KNOWN = {
    "__future__": "annotations",
    "argparse": "ArgumentParser",
    "array": "array",
    "collections.abc": "Callable Collection Iterable Iterator Mapping Sequence",
    "concurrent.futures": "ThreadPoolExecutor",
    "contextlib": "contextmanager suppress",
    "ctypes": "CDLL Structure byref c_int c_size_t c_ubyte c_uint64 c_ulonglong c_void_p cast create_string_buffer",
    "dataclasses": "dataclass field replace",
    "enum": "IntEnum",
    "functools": "cache cached_property lru_cache",
    "importlib.util": "find_spec",
    "itertools": "accumulate",
    "json": "dumps loads",
    "mmap": "mmap",
    "os": "O_CLOEXEC O_CREAT O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_RDONLY O_RDWR _exit close cpu_count environ fstat "
    "ftruncate getpid killpg listdir open posix_fallocate pread read register_at_fork truncate",
    "pathlib": "Path",
    "platform": "machine release",
    "queue": "Empty SimpleQueue",
    "random": "Random",
    "re": "MULTILINE compile findall sub",
    "signal": "SIGINT SIGKILL SIGQUIT SIGTERM SIG_BLOCK SIG_DFL SIG_UNBLOCK pthread_sigmask signal",
    "statistics": "mean median",
    "struct": "Struct error pack unpack unpack_from",
    "subprocess": "CompletedProcess PIPE Popen SubprocessError TimeoutExpired run",
    "sys": "argv executable exit path stderr stdout",
    "tempfile": "TemporaryDirectory",
    "threading": "Event Thread",
    "time": "monotonic monotonic_ns sleep time time_ns",
    "types": "FrameType MappingProxyType",
    "typing": "Any NamedTuple TYPE_CHECKING TypeVar",
    "zlib": "crc32",
}
"""The names of the standard library that may be used, by module: each is in that of Python 3.9.18."""
NEWER_KEYWORDS = {"zip": {"strict"}, "dataclass": {"slots", "kw_only"}}
"""Arguments that 3.10 added."""
IMPORTS = """
import importlib, sys
*folders, modules = sys.argv[1:]
sys.path[:0] = folders
for module in modules.split():
    importlib.import_module(module)
"""


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Modules that a file imports when it runs, each with a name taken from it."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from ((alias.name, "") for alias in statement.names)
        if isinstance(statement, ast.ImportFrom) and statement.module is not None:
            yield from ((statement.module, alias.name) for alias in statement.names)


def of_the_standard_library(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that a file uses of its modules, each with the module."""
    modules = {}
    for module, name in imported_names(tree):
        if module.partition(".")[0] in sys.stdlib_module_names:
            if name:
                yield module, name
            else:
                modules[module] = module
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def own_file(module: str, name: str) -> Path | None:
    """The file of ours that an import means, if it means one."""
    inside = [f"{module.replace('.', '/')}/{name}.py", f"{module.replace('.', '/')}.py"]
    found = (folder / path for folder in FOLDERS for path in inside)
    return next((path for path in found if path.is_file()), None)


def all_files() -> list[Path]:
    """Files of ours that `make gpu` runs, and all that these import."""
    files, new = set(), {VCUDA / "tests" / "gpu" / "real.py", VCUDA.parent / "nodeagent" / "schedule.py"}
    while new:
        path = new.pop()
        files.add(path)
        found = {own_file(*name) for name in imported_names(ast.parse(path.read_text()))}
        new |= {path for path in found if path is not None} - files
    return sorted(files)


def newer_keywords(tree: ast.Module) -> Iterator[str]:
    """Keyword arguments that the oldest Python does not have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            later = NEWER_KEYWORDS.get(node.func.id, set())
            yield from (f"{node.func.id}({key.arg}=)" for key in node.keywords if key.arg in later)


def has_unions_in_annotations(tree: ast.Module) -> bool:
    """Whether `X | Y` stands in an annotation, which 3.9 computes unless the file puts that off."""
    annotations = [
        annotation
        for node in ast.walk(tree)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(annotation, ast.AST)
    ]
    return any(isinstance(part, ast.BitOr) for each in annotations for part in ast.walk(each))


@pytest.mark.parametrize("path", all_files(), ids=lambda path: path.name)
def test_a_program_there_needs_no_newer_python(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=OLDEST)
    assert [name for name in of_the_standard_library(tree) if name[1] not in KNOWN.get(name[0], "").split()] == []
    assert list(newer_keywords(tree)) == []
    assert not has_unions_in_annotations(tree) or ("__future__", "annotations") in set(imported_names(tree))


def pythons() -> list[str]:
    """This Python, and those of machines with GPUs where they are installed."""
    found = [sys.executable]
    for name in ("python3.9", "python3.10"):
        try:
            subprocess.run([name, "--version"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        found.append(name)
    return found


@pytest.mark.parametrize("python", pythons(), ids=lambda python: Path(python).name)
def test_what_runs_there_is_imported_where_no_package_is_installed(python: str) -> None:
    folders = [str(folder) for folder in FOLDERS]
    command = [python, "-S", "-c", IMPORTS, *folders, "real nodeagent.schedule"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
