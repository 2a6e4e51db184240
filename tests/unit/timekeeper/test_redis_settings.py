from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis

from fairgpu.commands import CommandError
from timekeeper.ledger.connection import unreachable_message
from timekeeper.settings import BUNDLED_URL, RedisSettings, address, read_settings


def read(folder: Path, text: str, **environ: str) -> RedisSettings:
    file = folder / "settings.yaml"
    file.write_text(f"timekeeper: {{redis: {{{text}}}}}")
    prefixed = {f"FAIRGPU_TIMEKEEPER_REDIS_{name}": value for name, value in environ.items()}
    return read_settings(prefixed, file).redis


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "url: 'redis://r:6379', sentinel: {nodes: [s-0]}",
            "url and sentinel name different stores: keep one of url, sentinel.nodes and cluster.nodes",
        ),
        ("cluster: {nodes: [c-0]}, sentinel: {nodes: [s-0]}", "sentinel and cluster name different stores"),
        ("url: 'redis://r:6379/books'", "url ends with '/books': write the number of the database there, such as /0"),
        ("url: 'http://r:6379'", "url begins with 'http': write redis://, or rediss:// for TLS"),
        ("url: 'redis://me:hidden@r:6379'", "url holds a user or a password, which logs would show"),
        ("url: 'redis://r:6379', tls: {enabled: true}", "url begins with redis://, without TLS: write rediss://"),
        ("tls: {certificate_file: /tls/tls.crt}", "tls.certificate_file and tls.key_file go together"),
        ("sentinel: {nodes: ['redis://s-0:26379']}", "is no node: write its host and port, such as redis-0.redis:6379"),
        ("cluster: {nodes: ['c-0:many']}", "'c-0:many' is no node"),
        ("cluster: {nodes: ['c-0:70000']}", "'c-0:70000' is no node"),
        ("sentinel: {master_name: books}", "timekeeper.redis.sentinel.master_name"),
    ],
)
def test_a_setting_that_cannot_be_used_stops_the_start_and_says_what_to_write(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(CommandError) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)


def test_no_password_is_shown_when_a_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as refused:
        read(tmp_path, "url: 'redis://me:hunter2@r:6379', password: hunter2")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "place", ["password: [hunter2]", "sentinel: {password: {hunter2: 1}, nodes: [a:1], master: m}"]
)
def test_a_password_of_another_type_is_not_shown(tmp_path: Path, place: str) -> None:
    with pytest.raises(CommandError) as refused:
        read(tmp_path, place)
    assert "password" in str(refused.value)
    assert "given a value that is not shown; allowed: text" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_the_passwords_of_servers_and_of_sentinels_come_from_the_environment(tmp_path: Path) -> None:
    found = read(tmp_path, "sentinel: {nodes: [s-0]}", PASSWORD="a", SENTINEL_PASSWORD="b", USERNAME="books")
    assert found.password is not None
    assert found.sentinel.password is not None
    secrets = (found.password.get_secret_value(), found.sentinel.password.get_secret_value())
    assert (*secrets, found.username) == ("a", "b", "books")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("redis-0.redis", ("redis-0.redis", 26379)),
        ("10.0.0.7:7000", ("10.0.0.7", 7000)),
        ("[fd00::7]:7000", ("fd00::7", 7000)),
    ],
)
def test_a_node_is_a_host_and_where_it_is_written_a_port(node: str, expected: tuple[str, int]) -> None:
    assert address(node, 26379) == expected


@pytest.mark.parametrize("text", ["", "sentinel: {}", "timeout_seconds: 3", f"url: '{BUNDLED_URL}'"])
def test_the_store_of_the_manifests_is_spoken_to_as_they_set_it_up(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text, PASSWORD="a")
    assert found.is_bundled
    assert (found.username, str(found.tls.ca_file)) == ("timekeeper", "/etc/fairgpu-timekeeper-ca/ca.crt")


@pytest.mark.parametrize("text", ["url: 'rediss://r:6379'", "sentinel: {nodes: [s-0]}", "cluster: {nodes: [c-0]}"])
def test_a_store_of_ones_own_is_spoken_to_as_it_is_shown(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert not found.is_bundled
    assert (found.username, found.tls.ca_file) == (None, None)


def test_settings_for_the_store_of_the_manifests_count(tmp_path: Path) -> None:
    found = read(tmp_path, "username: books, tls: {ca_file: /ca.crt}")
    assert (found.username, str(found.tls.ca_file)) == ("books", "/ca.crt")


def test_the_examples_in_the_instructions_can_be_used(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "redis.md").read_text()
    examples = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "  redis:" in block]
    shapes = set()
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.yaml"
        file.write_text(example)
        found = read_settings({}, file).redis
        url = "bundled" if found.url == BUNDLED_URL else "own"
        shapes.add((bool(found.sentinel.nodes), bool(found.cluster.nodes), url))
        assert not found.is_bundled
    assert shapes == {(True, False, "bundled"), (False, True, "bundled"), (False, False, "own")}


def test_the_message_about_a_silent_store_has_one_full_stop() -> None:
    error = redis.ConnectionError("Error -2 connecting to redis:6379. Name or service not known.")
    assert ". Name or service not known. It is reached from inside the cluster alone" in unreachable_message(error)
