"""Counts what makes the tree easy or hard to read, and prints it as a table.

    python tools/readability.py [FOLDER]

FOLDER is the root of a checkout, the present folder by default. Nothing is imported from it: the sources are parsed.
"""

import ast
import gc
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

PACKAGES = ("fairgpu", "webhook", "timekeeper", "sidecar", "nodeagent", "scheduler")
DEMONSTRATION = "fairgpu/demo"

OBJECT_FIRST = re.compile(r"(What|Who|Whom|Whose|Of|How)\b")
WHETHER = re.compile(r"Whether\b")
IDIOM = re.compile(r"\b(told|tells|whoever|nobody|put down)\b", re.IGNORECASE)
TEST_NAME = re.compile(r"test_(what|who|whom|whose|of|how|whatever|whoever|nobody)_")
SHORT_MODULE = 80  # lines


def main() -> None:
    """Prints one line for each measure."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    gc.disable()  # the trees live to the end, and to look for garbage among them takes longer than to parse them
    trees = {
        path.relative_to(root): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if not path.relative_to(root).as_posix().startswith(DEMONSTRATION)  # as it was in earlier commits
    }
    sentences = [sentence for tree in trees.values() for sentence in first_sentences(tree)]
    show("docstring first sentences", len(sentences))
    show_share("… that begin with What, Who, Whom, Whose, Of or How", sentences, OBJECT_FIRST.match)
    elsewhere = [(text, is_bool) for text, is_bool in sentences if not is_bool]
    show("… that begin with Whether, but of a truth value", sum(bool(WHETHER.match(text)) for text, _ in elsewhere))
    show_share("… with told, tells, whoever, nobody or put down", sentences, IDIOM.search)
    test_trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((root / "tests").rglob("*.py"))]
    tests = [sentence for tree in test_trees for sentence in first_sentences(tree)]
    show(
        "… of tests that begin with What, Who, Whom, Whose, Of, How or Whether",
        sum(bool(OBJECT_FIRST.match(text) or (WHETHER.match(text) and not is_bool)) for text, is_bool in tests),
    )
    show("names of tests that do not begin with their subject", sum(map(inverted_names, test_trees)))
    modules = [path for path in trees if path.name != "__init__.py"]
    timekeeper = [path for path in modules if path.parts[0] == "timekeeper"]
    show("modules of the timekeeper", len(timekeeper))
    show(
        "folders of the timekeeper",
        len({path.parent for path in trees if len(path.parts) > 2 and path.parts[0] == "timekeeper"}),
    )
    show("modules with one importer and under 80 lines", len(lonely(root, trees)))
    twice = twice_defined(trees)
    show("class names defined twice within one service", len(twice), ", ".join(twice))
    show(
        "lines, without the demonstration",
        sum(len((root / path).read_text(encoding="utf-8").splitlines()) for path in trees),
    )


def show(measure: str, figure: int | str, detail: str = "") -> None:
    """Prints a line of the table."""
    sys.stdout.write(f"{measure:70} {figure:>8} {detail}".rstrip() + "\n")


def show_share(measure: str, sentences: list[tuple[str, bool]], matches: Callable[[str], re.Match[str] | None]) -> None:
    """Prints a count and its share of all first sentences."""
    count = sum(bool(matches(text)) for text, _ in sentences)
    show(measure, count, f"{100 * count / max(1, len(sentences)):.1f} percent")


def first_sentences(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """First sentences of the docstrings of a module, its classes, functions and attributes.

    The second value says whether the docstring describes a truth value: a function that returns bool, or an attribute
    that is one.
    """
    for node in statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield first_sentence(text), is_predicate(node)
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef) and isinstance(body, list):
            for attribute, text_node in pairwise(body):
                if isinstance(attribute, ast.AnnAssign | ast.Assign) and (text := literal(text_node)):
                    yield first_sentence(text), is_truth(getattr(attribute, "annotation", None))


def inverted_names(tree: ast.Module) -> int:
    """The number of tests in a module whose names begin as TEST_NAME does."""
    return sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and TEST_NAME.match(node.name) is not None
        for node in statements(tree)
    )


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The module and all statements in it, however deep; their expressions, most of a tree, hold none."""
    yield tree
    blocks: list[ast.AST] = [tree]
    for block in blocks:
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner = getattr(block, part, ())
            if isinstance(inner, list):
                yield from inner
                blocks += inner


def first_sentence(text: str) -> str:
    """The text up to its first full stop."""
    return re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0]


def literal(node: ast.stmt) -> str | None:
    """The text of an expression statement that is a string."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return None


def is_predicate(node: ast.AST) -> bool:
    """Whether a function returns bool."""
    return is_truth(getattr(node, "returns", None))


def is_truth(annotation: ast.expr | None) -> bool:
    """Whether an annotation is bool, or a wrapper of it."""
    return annotation is not None and re.search(r"\bbool\b", ast.unparse(annotation)) is not None


def lonely(root: Path, trees: dict[Path, ast.Module]) -> list[str]:
    """Modules that exactly one other module imports and that have fewer than 80 lines; generated ones do not count."""
    names = {name_of(path): path for path in trees}
    importers: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        for node in statements(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    importers[full if full in names else node.module].add(path)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    importers[alias.name].add(path)
    return [
        name
        for name, path in names.items()
        if path.name != "__init__.py"
        and not path.stem.endswith("_pb2")
        and len(importers[name]) == 1
        and len((root / path).read_text(encoding="utf-8").splitlines()) < SHORT_MODULE
    ]


def name_of(path: Path) -> str:
    """The dotted name of a module."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def twice_defined(trees: dict[Path, ast.Module]) -> list[str]:
    """Names of classes that one package defines at the top of two modules or more."""
    counts: Counter[tuple[str, str]] = Counter()
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                counts[path.parts[0], node.name] += 1
    return sorted(f"{package}.{name}" for (package, name), count in counts.items() if count > 1)


if __name__ == "__main__":
    main()
