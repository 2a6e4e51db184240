"""Clients trust what is served, however many replicas keep the certificates at once."""

from __future__ import annotations

import base64
import contextlib
import stat
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairgpu.certificates import RENEW_AT, expires_at, serves
from fairgpu.cluster.api import ApiError, Json
from fairgpu.serving.tls import Chain, ChainError, LiveContext
from tests.support.ledger.stored_objects import StoredObjects
from webhook.certificates.authority import certificates_in
from webhook.certificates.rotation import MOST_STEPS, chain_of, cluster_places, reconcile, run_rotation
from webhook.certificates.trust import CONFIGURATIONS, changes
from webhook.service import folder_places
from webhook.settings import Certificates

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = Certificates()
SECRETS = "/api/v1/namespaces/fairgpu-system/secrets"
AUTHORITY_SECRET, LEAF_SECRET = f"{SECRETS}/fairgpu-webhook-ca", f"{SECRETS}/fairgpu-webhook-tls"


class Cluster(StoredObjects):
    """Two configurations as the manifests make them, a clock, and all that the parts of a cluster may still go by."""

    def __init__(self) -> None:
        self.now = NOW
        self.bundles: list[tuple[datetime, str, bytes]] = []
        self.leaves: list[tuple[datetime, bytes]] = []
        super().__init__()
        for path, count in zip(CONFIGURATIONS, (1, 2), strict=True):
            webhooks: list[Json] = [{"clientConfig": {}} for _ in range(count)]
            self.put(path, {"metadata": {"name": "zz-fairgpu"}, "webhooks": webhooks})

    def put(self, path: str, item: Json) -> None:
        super().put(path, item)
        if path in CONFIGURATIONS:
            bundles = (webhook["clientConfig"].get("caBundle", "") for webhook in item["webhooks"])
            self.bundles += [
                (self.now, f"{path}/{index}", base64.b64decode(each)) for index, each in enumerate(bundles)
            ]
        if path == LEAF_SECRET:
            self.leaves.append((self.now, base64.b64decode(item["data"]["tls.crt"])))

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def keep(self, settings: Certificates = SETTINGS) -> None:
        reconcile(cluster_places(self, settings), settings, lambda: self.now)

    def secret(self, path: str) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self.get(path)["data"].items()}

    def bundle(self) -> bytes:
        (found,) = {
            webhook["clientConfig"]["caBundle"] for path in CONFIGURATIONS for webhook in self.get(path)["webhooks"]
        }
        return base64.b64decode(found)

    def check(self, lag: timedelta, settings: Certificates) -> None:
        """Every bundle that an API server may go by accepts every certificate that a replica may serve."""
        served = recent(self.leaves, self.now - lag)
        assert all(self.now < expires_at(leaf) for leaf in served)
        for webhook in {name for _, name, _ in self.bundles}:
            for bundle in recent([(at, pem) for at, name, pem in self.bundles if name == webhook], self.now - lag):
                for leaf in served:
                    assert any(serves(leaf, authority, settings.names) for authority in certificates_in(bundle))


def recent(history: list[tuple[datetime, bytes]], since: datetime) -> list[bytes]:
    """Returns the value that held at a moment, and all later ones."""
    before = [value for at, value in history if at <= since][-1:]
    return before + [value for at, value in history if at > since]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_an_installation_is_trusted_by_every_webhook_after_one_look(cluster: Cluster) -> None:
    cluster.keep()
    authorities, leaf = cluster.secret(AUTHORITY_SECRET), cluster.secret(LEAF_SECRET)
    assert cluster.bundle() == authorities["ca.crt"]
    assert serves(leaf["tls.crt"], authorities["ca.crt"], SETTINGS.names)
    assert set(leaf) == {"tls.crt", "tls.key"}
    assert "ca.key" in authorities


def test_a_look_that_finds_all_in_order_writes_nothing(cluster: Cluster) -> None:
    cluster.keep()
    verbs: Counter[str] = Counter()
    cluster.before = lambda verb, _path: verbs.update([verb])
    cluster.keep()
    assert verbs == {"get": 4}


def test_configurations_that_are_applied_later_get_the_bundle_at_the_next_look(cluster: Cluster) -> None:
    for path in CONFIGURATIONS:
        cluster.remove(path)
    cluster.keep()
    for path in CONFIGURATIONS:
        cluster.put(path, {"metadata": {"name": "zz-fairgpu"}, "webhooks": [{"clientConfig": {}}]})
    cluster.keep()
    assert cluster.bundle() == cluster.secret(AUTHORITY_SECRET)["ca.crt"]


def test_a_deleted_authority_leaves_all_certificates_trusted(cluster: Cluster) -> None:
    cluster.keep()
    first, key = cluster.bundle(), cluster.secret(AUTHORITY_SECRET)["ca.key"]
    cluster.advance(86400)
    cluster.remove(AUTHORITY_SECRET)
    for _ in range(4):
        cluster.keep()
        cluster.check(timedelta(seconds=SETTINGS.spread_seconds * 0.9), SETTINGS)
        cluster.advance(SETTINGS.spread_seconds)
    assert first not in cluster.bundle()
    assert cluster.secret(AUTHORITY_SECRET)["ca.key"] != key


def test_a_deleted_certificate_is_issued_at_the_next_look(cluster: Cluster) -> None:
    cluster.keep()
    cluster.remove(LEAF_SECRET)
    cluster.keep()
    assert serves(cluster.secret(LEAF_SECRET)["tls.crt"], cluster.bundle(), SETTINGS.names)


def test_a_secret_of_an_earlier_version_gives_up_the_key_of_its_authority(cluster: Cluster) -> None:
    cluster.keep()
    cluster.advance(86400)
    old = {**cluster.get(AUTHORITY_SECRET)["data"], **cluster.get(LEAF_SECRET)["data"], "changed-at": ""}
    cluster.put(LEAF_SECRET, {"metadata": {"name": "fairgpu-webhook-tls"}, "data": old})
    cluster.remove(AUTHORITY_SECRET)
    for _ in range(4):
        cluster.keep()
        cluster.check(timedelta(seconds=SETTINGS.spread_seconds * 0.9), SETTINGS)
        cluster.advance(SETTINGS.spread_seconds)
    assert set(cluster.secret(LEAF_SECRET)) == {"tls.crt", "tls.key"}
    assert cluster.bundle() == cluster.secret(AUTHORITY_SECRET)["ca.crt"]


def test_a_configuration_that_others_change_at_the_same_time_is_not_overwritten(cluster: Cluster) -> None:
    def other_publishes(verb: str, path: str) -> None:
        if verb == "patch":
            cluster.before = lambda _verb, _path: None
            item = cluster.get(path)
            cluster.put(path, {**item, "labels": {"by": "another"}})

    cluster.before = other_publishes
    cluster.keep()
    assert cluster.get(CONFIGURATIONS[0])["labels"] == {"by": "another"}
    assert cluster.bundle() == cluster.secret(AUTHORITY_SECRET)["ca.crt"]


def test_a_writer_that_is_always_too_late_gives_up_until_the_next_look(cluster: Cluster) -> None:
    def always_conflicts(verb: str, path: str) -> None:
        if verb == "create":
            raise ApiError(409, "AlreadyExists", path)

    cluster.before = always_conflicts
    with pytest.raises(ChainError, match="again and again"):
        cluster.keep()


def test_a_configuration_that_the_api_server_does_not_take_is_named(cluster: Cluster) -> None:
    def invalid(verb: str, _path: str) -> None:
        if verb == "patch":
            raise ApiError(422, "Invalid", "webhooks[0].clientConfig.caBundle: unable to load root certificates")

    cluster.before = invalid
    with pytest.raises(ChainError, match="unable to load root certificates"):
        cluster.keep()


def test_a_right_that_is_missing_is_named_and_tried_again(cluster: Cluster, tmp_path: Path) -> None:
    def forbidden(verb: str, path: str) -> None:
        if verb == "create":
            raise ApiError(403, "Forbidden", f"no create in {path}")

    waits = iter((False, True))

    def wait(_seconds: float) -> bool:
        cluster.before = lambda _verb, _path: None
        return next(waits)

    cluster.before = forbidden
    alive = tmp_path / "alive"
    run_rotation(cluster_places(cluster, SETTINGS), SETTINGS, lambda: cluster.now, wait, alive)
    assert alive.exists()
    assert cluster.bundle() == cluster.secret(AUTHORITY_SECRET)["ca.crt"]


def test_every_certificate_stays_trusted_when_the_process_is_away_for_a_week_at_any_moment(cluster: Cluster) -> None:
    week, lag = 7 * 86400, timedelta(seconds=SETTINGS.spread_seconds * 0.9)
    authorities = set()
    for _ in range(3 * 156):
        cluster.keep()
        authorities |= set(certificates_in(cluster.bundle()))
        cluster.advance(week)
        cluster.check(lag, SETTINGS)
    assert len(authorities) >= 4


QUICK = SETTINGS.model_copy(
    update={"authority_seconds": 60 * 86400, "leaf_seconds": 25 * 86400, "spread_seconds": 43200.0}
)
PAUSES = st.lists(st.sampled_from((0.0, 0.0, 0.25, 0.51, 2.0)), max_size=3)
"""Days after each of which the other process looks, while the first waits for an answer."""


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 1.5), st.lists(PAUSES, max_size=2 * MOST_STEPS)), min_size=8, max_size=20))
def test_two_processes_at_once_break_nobodys_trust(turns: list[tuple[float, list[list[float]]]]) -> None:
    """A node that is cut off keeps its process, and another node has one, too: each may stop between any two requests.

    API servers go by the bundle of up to half a day ago, replicas by the certificate of up to half a day ago. Both
    processes together may look away for three days at a time, of the eight between a renewal and the end.
    """
    cluster, lag = Cluster(), timedelta(days=0.49)
    cluster.keep(QUICK)
    cluster.bundles = cluster.bundles[-3:]  # configurations of before the installation do not count
    for days, interruptions in turns:
        left = iter(interruptions)

        def other_goes_on(_verb: str, _path: str) -> None:
            hook, cluster.before = cluster.before, lambda _verb, _path: None
            for pause in next(left, []):  # noqa: B023 - the hook is of this turn
                cluster.advance(pause * 86400)
                cluster.check(lag, QUICK)
                cluster.keep(QUICK)
                cluster.check(lag, QUICK)
            cluster.before = hook

        cluster.before = other_goes_on
        with contextlib.suppress(ChainError):  # interrupted too often, it looks again later
            cluster.keep(QUICK)
        cluster.before = lambda _verb, _path: None
        cluster.check(lag, QUICK)
        cluster.advance(days * 86400)
        cluster.check(lag, QUICK)


@pytest.mark.parametrize("request_number", range(12))
def test_a_process_that_stands_still_while_another_rotates_all_breaks_nobodys_trust(
    cluster: Cluster, request_number: int
) -> None:
    for _ in range(41):
        cluster.advance(86400)
        if cluster.now < NOW + timedelta(seconds=QUICK.authority_seconds * RENEW_AT):
            cluster.keep(QUICK)
    left = iter(range(request_number))

    def other_rotates(_verb: str, _path: str) -> None:
        if next(left, None) is not None:
            return
        cluster.before = lambda _verb, _path: None
        for _ in range(5):
            cluster.keep(QUICK)
            cluster.advance(QUICK.spread_seconds)

    cluster.before = other_rotates
    cluster.keep(QUICK)
    cluster.check(timedelta(days=0.49), QUICK)


def folder_chain(folder: Path, now: datetime = NOW) -> Chain:
    return chain_of(reconcile(folder_places(folder), SETTINGS, lambda: now))


def test_standalone_the_first_makes_them_and_the_others_read_them(tmp_path: Path) -> None:
    chain = folder_chain(tmp_path)
    assert folder_chain(tmp_path) == chain
    assert folder_chain(tmp_path, NOW + timedelta(days=30)) == chain
    assert folder_chain(tmp_path, NOW + timedelta(days=70)) != chain


def test_many_that_start_at_once_end_up_with_the_same(tmp_path: Path) -> None:
    chains: list[Chain] = []
    threads = [threading.Thread(target=lambda: chains.append(folder_chain(tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(chains)) == 1
    assert len(chains) == 4


def test_no_other_user_reads_the_keys(tmp_path: Path) -> None:
    folder_chain(tmp_path)
    folder = tmp_path / "certificates" / "webhook"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "certificates").write_text("")
    with pytest.raises(ChainError, match="certificates"):
        folder_chain(tmp_path)


def test_a_chain_with_a_foreign_key_leaves_the_present_one_in_place(tmp_path: Path) -> None:
    ours, other = folder_chain(tmp_path / "a"), folder_chain(tmp_path / "b")
    live = LiveContext(ours)
    with pytest.raises(ChainError):
        live.reload(Chain(ours.certificates_pem, other.key_pem))
    assert live.chain == ours
    assert not live.reload(ours)
    assert live.reload(other)
    assert live.chain == other


def test_the_patch_of_a_configuration_tests_its_version_and_sets_each_bundle() -> None:
    bundle = base64.b64encode(b"pem").decode()
    configuration = {
        "metadata": {"resourceVersion": "7"},
        "webhooks": [{"clientConfig": {"caBundle": bundle}}, {"clientConfig": {}}],
    }
    assert changes(configuration, bundle) == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": bundle},
    ]
    configuration["webhooks"][1]["clientConfig"]["caBundle"] = bundle  # type: ignore[index]
    assert changes(configuration, bundle) == []
