"""`make gpu` runs with the Python of machines with GPUs: 3.9 (RHEL 9) and 3.10 (Ubuntu 22.04)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

VCUDA = Path(__file__).resolve().parent.parent
FOLDERS = (VCUDA / "tests" / "gpu", VCUDA / "tests", VCUDA / "bench", VCUDA / "simgpu", VCUDA.parent)
OLDEST = (3, 9)
NEWER_NAMES = {
    "typing": {"Self", "TypeAlias", "ParamSpec", "assert_never", "override", "LiteralString", "Never", "Unpack"},
    "itertools": {"pairwise", "batched"},
    "enum": {"StrEnum", "ReprEnum", "member", "verify"},
    "datetime": {"UTC"},
    "contextlib": {"chdir", "aclosing"},
    "tomllib": {"", "load", "loads"},
}
"""Names that 3.10 and later added to modules of the standard library."""
NEWER_KEYWORDS = {"zip": {"strict"}, "dataclass": {"slots", "kw_only"}}
"""Arguments that 3.10 added."""


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Modules that a file imports when it runs, each with a name taken from it."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from ((alias.name, "") for alias in statement.names)
        if isinstance(statement, ast.ImportFrom) and statement.module is not None:
            yield from ((statement.module, alias.name) for alias in statement.names)


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


def newer(tree: ast.Module) -> Iterator[str]:
    """Names and keyword arguments that the oldest Python does not have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            later = NEWER_KEYWORDS.get(node.func.id, set())
            yield from (f"{node.func.id}({key.arg}=)" for key in node.keywords if key.arg in later)
    yield from (f"{module}.{name}" for module, name in imported_names(tree) if name in NEWER_NAMES.get(module, ()))


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
def test_what_runs_there_needs_no_newer_python(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=OLDEST)
    assert list(newer(tree)) == []
    assert not has_unions_in_annotations(tree) or ("__future__", "annotations") in set(imported_names(tree))
