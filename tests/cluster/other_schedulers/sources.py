"""The files that a trial reads in the checkout of another project: its version, and the manifests that it installs.

Nothing of other projects is kept here.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from tests.cluster.installation import Manifest


class SourcesError(RuntimeError):
    """A checkout or a program is missing; the message names it."""


def program(folder: Path, name: str) -> Path:
    """Returns the path of a program.

    Raises:
        SourcesError: it is missing.
    """
    path = folder / name
    if not os.access(path, os.X_OK):
        raise SourcesError(f"{folder} has no program {name}: build it there, or name another folder with --programs")
    return path


def version(checkout: Path) -> str:
    """Returns the version of a checkout, as git describes it.

    Raises:
        SourcesError: the folder is no checkout.
    """
    command = ["git", "-C", str(checkout), "describe", "--tags", "--always"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise SourcesError(f"{checkout} is no checkout: {answer.stderr.strip()}")
    return answer.stdout.strip()


def manifests(
    checkout: Path, files: Iterable[str], kinds: Iterable[str], values: Mapping[str, str] | None = None
) -> list[Manifest]:
    """Returns the objects of some kinds in a project's files.

    Of Helm's templates, the values of `values` are filled in, and a line that is an action alone is left out.

    Args:
        checkout: the project.
        files: paths in it; each may be a pattern.
        kinds: the kinds.
        values: the text in place of each action, by its expression.

    Raises:
        SourcesError: a file is missing.
    """
    wanted, found = frozenset(kinds), []
    for pattern in files:
        paths = sorted(checkout.glob(pattern))
        if not paths:
            raise SourcesError(f"{checkout} has no file {pattern}: it is not the project, or another version of it")
        for path in paths:
            for text in re.split(r"^---.*$", _filled(path.read_text(), values or {}), flags=re.MULTILINE):
                if re.search(rf"^kind: ({'|'.join(wanted)})\s*$", text, re.MULTILINE):
                    found += [document for document in yaml.safe_load_all(text) if document]
    return found


def _filled(text: str, values: Mapping[str, str]) -> str:
    for expression, value in values.items():
        text = text.replace(f"{{{{ {expression} }}}}", value)
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith("{{"))
