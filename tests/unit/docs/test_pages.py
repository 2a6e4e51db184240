"""Links lead somewhere, commands can be typed, settings and metrics that are named exist."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest
import yaml

from fairgpu.commands import build_parser
from fairgpu.settings import fields
from tests.support import settings_page
from tests.unit.docs.pages import PAGES, ROOT, Link, anchors, commands, links, mentions
from timekeeper.controller import leader_tasks
from timekeeper.settings import Settings as TimekeeperSettings
from webhook.settings import Settings as WebhookSettings

LINKS = [link for page in PAGES for link in links(page)]
COMMANDS = [(page, words) for page in PAGES for words in commands(page) if words]
MENTIONS = [(page, words) for page in PAGES for words in mentions(page, "fairgpu")]
INDEX = ROOT / "docs" / "README.md"
SERVICES = ("fairgpu", "nodeagent", "scheduler", "sidecar", "timekeeper", "webhook")


def ids(item: tuple[Path, list[str]]) -> str:
    return f"{item[0].name}: {' '.join(item[1])}"


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_every_link_leads_somewhere(link: Link) -> None:
    file, _, anchor = link.target.partition("#")
    target = (link.page.parent / file).resolve() if file else link.page
    assert target.exists()
    if anchor:
        assert anchor in anchors(target)


def test_every_page_is_reached_from_the_index() -> None:
    reached = {(INDEX.parent / link.target.partition("#")[0]).resolve() for link in links(INDEX)}
    pages = {page for page in PAGES if "docs" in page.relative_to(ROOT).parts} - {INDEX}
    assert {str(page.relative_to(ROOT)) for page in pages if not {page, page.parent} & reached} == set()


def of(program: str) -> list[tuple[Path, list[str]]]:
    """The commands of a program, also those that are run inside of a pod."""
    found = []
    for page, words in COMMANDS:
        inner = words[words.index("--") + 1 :] if "exec" in words and "--" in words else words
        found += [(page, each[1:]) for each in (words, inner) if each and each[0] == program]
    return found


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """Made once, since it takes longer to make than to parse with."""
    return build_parser()


@pytest.mark.parametrize("command", of("fairgpu"), ids=ids)
def test_every_fairgpu_command_can_be_typed(command: tuple[Path, list[str]], parser: argparse.ArgumentParser) -> None:
    assert_taken(parser, command[1])


@pytest.mark.parametrize("mention", MENTIONS, ids=ids)
def test_every_fairgpu_command_that_is_named_in_a_sentence_is_one(
    mention: tuple[Path, list[str]], parser: argparse.ArgumentParser
) -> None:
    words = mention[1][1:]
    only_named = all(re.fullmatch("[a-z]+", word) for word in words)
    assert_taken(parser, [*words, "--help"] if only_named else words)


def assert_taken(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """The command line takes these words."""
    said = io.StringIO()
    status: object = 0
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            parser.parse_args(words)
        except SystemExit as ending:
            status = ending.code
    assert status == 0, said.getvalue()


def test_no_person_is_asked_to_apply_what_is_not_theirs() -> None:
    """The base alone has no registry: applied over an installation, it takes its images and settings away."""
    assert [str(page) for page in PAGES if "apply -k deploy/base" in page.read_text()] == []


def test_a_person_who_looks_into_logs_sees_those_of_all_replicas_and_no_last_ten_lines() -> None:
    """`kubectl logs deployment/NAME` shows one pod, and ten lines with a selector, unless `--tail` says more."""
    for page in PAGES:
        for line in re.sub(r"-l\n", "-l ", page.read_text()).splitlines():
            for command in re.findall(r"kubectl [^`|]*\blogs [^`|]*", line):
                assert not re.search(r"\blogs deploy", command), f"{page.name}: {command}"
                assert "-l " not in command or "--tail=" in command, f"{page.name}: {command}"


@pytest.mark.parametrize("command", of("make"), ids=ids)
def test_every_make_target_is_there(command: tuple[Path, list[str]]) -> None:
    words = command[1]
    folder, words = (words[1], words[2:]) if words[:1] == ["-C"] else (".", words)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / folder / "Makefile").read_text(), re.MULTILINE))
    assert {word for word in words if re.fullmatch(r"[a-z]+", word)} <= targets


def test_objects_that_documented_kubectl_commands_name_are_part_of_the_installation() -> None:
    objects: set[str] = set()
    containers: set[str] = set()
    for file in (ROOT / "deploy" / "base").rglob("*.yaml"):
        for item in yaml.safe_load_all(file.read_text()):
            if isinstance(item, dict) and item.get("kind") in {"Deployment", "StatefulSet", "Service"}:
                objects.add(item["metadata"]["name"])
                template = item["spec"].get("template", {})
                containers |= {each["name"] for each in template.get("spec", {}).get("containers", [])}
    wrong = []
    for page, words in COMMANDS:
        named = [
            word.partition("/")[2] for word in words if re.match(r"(deploy|service|statefulset)\w*/fairgpu-", word)
        ]
        wrong += [f"{page.name}: {name}" for name in named if name not in objects]
        if words[0] == "kubectl" and "-c" in words and "fairgpu-system" in words:
            container = words[words.index("-c") + 1]
            wrong += [f"{page.name}: container {container}"] if container not in containers else []
    assert wrong == []


def test_every_setting_that_is_named_exists() -> None:
    known = {".".join(path) for model in (TimekeeperSettings, WebhookSettings) for path in fields(model)}
    groups = {path.rpartition(".")[0] for path in known} | {"timekeeper", "webhook"}
    below = tuple(f"{setting}." for setting in known)
    wrong = []
    for page in PAGES:
        named = re.findall(r"`((?:timekeeper|webhook)(?:\.[a-z_]+)+)[`: ]", page.read_text())
        unknown = [name for name in named if name not in known | groups]
        wrong += [f"{page.name}: {name}" for name in unknown if not name.startswith(below)]
    assert wrong == []


def test_the_reference_of_settings_has_each_with_its_default_and_what_it_does() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), "python -m tests.support.settings_page writes it"
    assert [row for row in settings_page.page().splitlines() if row.endswith("|  |")] == []


SERVICES = ("fairgpu", "nodeagent", "scheduler", "timekeeper", "webhook")


def test_a_line_to_look_for_in_a_log_is_one_that_the_services_write() -> None:
    """Servers' own words, such as Redis's `MISCONF`, are in capitals."""
    files = [file for service in SERVICES for file in (ROOT / service).rglob("*.*")]
    source = "\n".join(file.read_text() for file in files if file.suffix in {".py", ".lua"})
    shown = (r"`([^`]+)`(?: or `[^`]+`)?\s+in\s+(?:the|their)\s+log\b", r"\blog\s+(?:has|says)\s+`([^`]+)`")
    greps = r"logs [^`\n]+\| grep (?:-E )?'?([^'`\n]+?)'?[`\n]"
    wanted = {
        (page.name, words.partition(":")[0])
        for page in PAGES
        for pattern in (*shown, greps)
        for found in re.findall(pattern, page.read_text())
        for words in found.split("|")
        if not words.isupper()
    }
    assert len(wanted) >= 8
    assert {(page, words) for page, words in wanted if words not in source} == set()


@pytest.mark.parametrize("page", ["alerts.md", "monitoring.md"])
def test_every_task_that_may_fail_is_named(page: str) -> None:
    source = inspect.getsource(leader_tasks)
    tasks = set(re.findall(r'self\._do\("(\w+)"', source))
    assert "settle" in tasks
    assert {task for task in tasks if f"`{task}`" not in (ROOT / "docs" / page).read_text()} == set()


def test_every_metric_that_is_named_is_described() -> None:
    described = set(re.findall(r"^\| `(fairgpu_\w+)", (ROOT / "docs" / "monitoring.md").read_text(), re.MULTILINE))
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"(?<!:)\bfairgpu_(?:webhook|timekeeper|budget)_\w+", page.read_text())
    }
    assert {(page, name) for page, name in named if name not in described} == set()
