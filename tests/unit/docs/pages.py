"""The documents, their links, headings and commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Link:
    """A link on a page."""

    page: Path
    target: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)} -> {self.target}"


def links(page: Path) -> Iterator[Link]:
    """The links of a page that stay in the project."""
    for match in _LINK.finditer(_FENCE.sub("", page.read_text())):
        target = match[1] or match[2]
        if not re.match(r"[a-z]+:", target):
            yield Link(page, target)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [match[3] for match in _FENCE.finditer(page.read_text()) if match[2] == language]


def commands(page: Path) -> Iterator[list[str]]:
    """Returns the commands of a page's console blocks: each in words, without the commands that it is piped into."""
    for block in blocks(page, "console"):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if line.startswith("$ "):
                for part in re.split(r"\s*(?:&&|;|\|\|?)\s*(?=(?:[^'\"]*['\"][^'\"]*['\"])*[^'\"]*$)", line[2:]):
                    yield _words(part)


def mentions(page: Path, program: str) -> list[list[str]]:
    """The commands of a program that a page's running text names, in words."""
    text = _FENCE.sub("", page.read_text())
    return [_words(span) for span in re.findall(rf"`({program} [^`]+)`", text)]


def _words(text: str) -> list[str]:
    words = shlex.split(re.sub(r"\$\([^)]*\)", "VALUE", text), comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    for index, word in enumerate(words):
        if re.fullmatch(r"\d?[<>]+.*", word):
            return words[:index]
    return words
