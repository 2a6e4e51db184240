"""A fault of a setting is stated with its key, what was given, what is allowed, and what to write."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import AwareDatetime, Field, IPvAnyNetwork

from fairgpu.settings import SECTIONS, Section, SettingsError, load_settings
from nodeagent.settings import Settings as NodeagentSettings
from scheduler.settings import Settings as SchedulerSettings
from timekeeper.settings import Settings as TimekeeperSettings
from webhook.settings import Settings as WebhookSettings

Name = Annotated[str, Field(pattern=r"^[a-z]+$", max_length=5)]


class Price(Section):
    since: AwareDatetime | None = None
    price: Annotated[Decimal, Field(ge=0, le=9, max_digits=3)]


class Store(Section):
    url_file: Path | None = None
    workers: Annotated[int, Field(ge=1, le=64)] = 2
    seconds: Annotated[float, Field(gt=0)] = 5.0


class Service(Section):
    mode: Literal["share", "account"] = "share"
    alive: bool = False
    names: Annotated[tuple[Name, ...], Field(min_length=1)] = ("web",)
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] | None = Field(default=None, examples=["EUR"])
    networks: tuple[IPvAnyNetwork, ...] = ()
    prices: dict[str, tuple[Price, ...]] = Field(default_factory=dict)
    by_name: dict[Name, int] = Field(default_factory=dict)
    price: Price | None = None
    store: Store = Store()
    redis_url: str = ""


class Settings(Section):
    service: Service = Service()


def fault(tmp_path: Path, text: str) -> str:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings, {}, file)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{mode: shares}", "service.mode (FAIRGPU_SERVICE_MODE): given 'shares'; allowed: share, account"),
        ("{mode: }", "service.mode (FAIRGPU_SERVICE_MODE): given nothing; allowed: share, account"),
        ("{alive: perhaps}", "service.alive (FAIRGPU_SERVICE_ALIVE): given 'perhaps'; allowed: true, false"),
        ("{store: {workers: 0}}", "(FAIRGPU_SERVICE_STORE_WORKERS): given 0; allowed: a whole number from 1 to 64"),
        ("{store: {workers: 1.5}}", "given 1.5; allowed: a whole number from 1 to 64"),
        ("{store: {seconds: 5s}}", "given '5s'; allowed: a number above 0"),
        ("{store: 5}", "service.store: given 5; allowed: a group of settings: seconds, url_file, workers"),
        ("{store: {url_file: 5}}", "given 5; allowed: a path in quotes"),
        ("{store: {url: x}}", "service.store.url: there is no such setting; write service.store.url_file"),
        ("{names: []}", "given []; allowed: a list of at least one item, such as [a]"),
        ("{names: [A]}", ".0 (FAIRGPU_SERVICE_NAMES): given 'A'; allowed: text that matches ^[a-z]+$, such as web"),
        ("{names: [abcdef]}", "given 'abcdef'; allowed: text of at most 5 letters"),
        ("{code: euro}", "given 'euro'; allowed: text that matches ^[A-Z]{3}$, such as EUR"),
        ("{networks: [all]}", "given 'all'; allowed: a network without bits behind its prefix, such as 10.0.0.0/24"),
        ("{prices: 5}", "service.prices (FAIRGPU_SERVICE_PRICES): given 5; allowed: a map, such as {a: 1}"),
        ("{prices: {a: [{price: -1}]}}", ".a.0.price (FAIRGPU_SERVICE_PRICES): given -1; allowed: a number from 0"),
        ("{prices: {a: [{price: 1.0001}]}}", "allowed: a number from 0 to 9 with at most 3 digits"),
        ("{prices: {a: [{since: 2026-01-01, price: 1}]}}", "a time with its offset, such as 2026-01-01T00:00:00Z"),
        ("{prices: {a: [{from: 1, price: 1}]}}", ".a.0.from: there is no such setting; allowed there: price, since"),
        ("{prices: {a: [{}]}}", "given nothing; allowed: a number from 0 to 9; write it, since it has no default"),
        ("{by_name: {A: 1}}", "service.by_name.A (FAIRGPU_SERVICE_BY_NAME): given 'A' as a key; allowed: text"),
        ("{price: 5}", "service.price (FAIRGPU_SERVICE_PRICE): given 5; allowed: a group of settings: price, since"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_answered_in_a_persons_words(tmp_path: Path, text: str, said: str) -> None:
    assert said in fault(tmp_path, f"service: {text}")


def test_a_list_with_one_wrong_item_has_one_fault(tmp_path: Path) -> None:
    assert fault(tmp_path, "service: {names: [A]}").count("\n") == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mode: look", "mode: there is no such section; write service.mode"),
        ("store: {workers: 3}", "store: there is no such section; write service.store"),
        ("servise: {}", "servise: there is no such section; write service"),
        ("timekeper: {}", "timekeper: there is no such section; write timekeeper"),
        ("x: {}", "x: there is no such section; allowed: service, webhook, timekeeper, scheduler, nodeagent, existing"),
    ],
)
def test_a_section_that_no_service_has_is_not_passed_over(tmp_path: Path, text: str, said: str) -> None:
    assert said in fault(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "service:\n  mode: account\ntimekeeper: {}\nservice:\n  alive: true\n",
        "service: {}\ntimekeeper: {mode: look, mode: share}\n",
        "service:\n  mode: account\n  'mode': share\n",
    ],
)
def test_a_key_that_stands_twice_is_refused_and_not_half_read(tmp_path: Path, text: str) -> None:
    assert "stands twice, first on line" in fault(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "timekeeper: &base {mode: look}\nservice: {<<: *base, mode: account}\n",
        "timekeeper: &a {mode: look}\nwebhook: {b: &b {<<: *a, mode: share}}\nservice: {<<: *b, mode: account}\n",
    ],
)
def test_a_merged_map_may_override_a_key(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    assert load_settings(Settings, {}, file).service.mode == "account"


def test_a_key_that_stands_twice_in_the_environment_is_refused() -> None:
    with pytest.raises(SettingsError, match="FAIRGPU_SERVICE_BY_NAME"):
        load_settings(Settings, {"FAIRGPU_SERVICE_BY_NAME": "{a: 1, a: 2}"})


def test_the_sections_of_a_settings_file_are_those_that_the_services_have() -> None:
    services = (WebhookSettings, TimekeeperSettings, SchedulerSettings, NodeagentSettings)
    assert {section for each in services for section in each.model_fields} == set(SECTIONS)
