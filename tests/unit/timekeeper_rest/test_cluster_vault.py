"""The timekeeper's authority is shown in a ConfigMap for as long as the timekeeper runs."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest

from fairgpu.cluster.api import ApiError
from fairgpu.serving.tls import ChainError
from tests.support.ledger.stored_objects import StoredObjects
from timekeeper.certificates import AUTHORITY, CERTIFICATE_KEY, CONFIG_MAPS, SECRETS, ClusterVault, read_chain

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SHOWN = f"{CONFIG_MAPS}/{AUTHORITY}"


@pytest.fixture
def api() -> StoredObjects:
    return StoredObjects()


def look(vault: ClusterVault) -> None:
    read_chain(vault, ["localhost"], lambda: NOW)


def shown(api: StoredObjects) -> object:
    return api.get(SHOWN)["data"][CERTIFICATE_KEY]


def test_a_config_map_that_is_deleted_is_made_again_at_the_next_look(api: StoredObjects) -> None:
    vault = ClusterVault(api)
    look(vault)
    before = shown(api)
    api.remove(SHOWN)
    look(vault)
    assert shown(api) == before


@pytest.mark.parametrize("data", [{"data": {CERTIFICATE_KEY: "another"}}, {"data": {}}, {}])
def test_a_config_map_that_shows_something_else_is_set_right_at_the_next_look(
    api: StoredObjects, data: dict[str, object]
) -> None:
    vault = ClusterVault(api)
    look(vault)
    before = shown(api)
    api.put(SHOWN, {"metadata": {"name": AUTHORITY}, **data})
    look(vault)
    assert shown(api) == before


def test_a_look_at_a_config_map_that_is_right_is_one_read(api: StoredObjects) -> None:
    vault = ClusterVault(api)
    look(vault)
    requests: Counter[tuple[str, str]] = Counter()
    api.before = lambda verb, path: requests.update([(verb, path)])
    look(vault)
    assert {key: count for key, count in requests.items() if key[1].startswith(CONFIG_MAPS)} == {("get", SHOWN): 1}


def test_another_replica_that_makes_the_config_map_first_is_no_failure(api: StoredObjects) -> None:
    other, vault = ClusterVault(api), ClusterVault(api)
    look(other)
    api.remove(SHOWN)

    def other_is_faster(verb: str, path: str) -> None:
        if (verb, path) == ("create", CONFIG_MAPS):
            api.before = lambda _verb, _path: None
            look(other)

    api.before = other_is_faster
    look(vault)
    assert shown(api)


def test_a_config_map_that_cannot_be_written_is_an_error_of_the_chain(api: StoredObjects) -> None:
    def forbidden(verb: str, path: str) -> None:
        if (verb, path) == ("create", CONFIG_MAPS):
            raise ApiError(403, "Forbidden", "configmaps is forbidden")

    api.before = forbidden
    with pytest.raises(ChainError, match="configmaps is forbidden"):
        look(ClusterVault(api))


@pytest.mark.parametrize("certificate", ["w6k=", "é", 1])
def test_a_secret_whose_authority_is_no_certificate_is_an_error_of_the_chain(
    api: StoredObjects, certificate: object
) -> None:
    path = f"{SECRETS}/{AUTHORITY}"
    look(ClusterVault(api))
    secret = api.get(path)
    api.put(path, {**secret, "data": {**secret["data"], "tls.crt": certificate}})
    with pytest.raises(ChainError, match="the timekeeper's certificate"):
        look(ClusterVault(api))
