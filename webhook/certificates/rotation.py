"""Renews the webhook's CA and certificate: observes them and the webhook configurations, and takes the due steps.

The process of `fairgpu webhook certificates` does so repeatedly. The process listens on no port. After each check it
touches a file, from which a probe sees that the process works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.keeping import Wait
from fairgpu.serving.tls import Chain, ChainError
from webhook.certificates.authority import (
    Authorities,
    Observation,
    Step,
    first_authorities,
    new_leaf,
    newest_alone,
    next_step,
    pack_authorities,
    pack_leaf,
    seen_published,
    unpack_authorities,
    unpack_leaf,
    with_new_authority,
)
from webhook.certificates.storing import SecretStore, Store
from webhook.certificates.trust import Configuration, Configurations, Trust, published
from webhook.settings import Certificates

_log = structlog.get_logger(__name__)

MOST_STEPS = 12
"""The most steps at once. A first installation takes four; more are needed if another process takes steps meanwhile."""


@dataclass(frozen=True, slots=True)
class Places:
    """The places that hold the webhook's certificates.

    Attributes:
        configurations: the webhook configurations, which publish the CAs.
        leaf: the store of the served certificate and its key.
        authorities: the store of the CAs and the newest one's key.
    """

    configurations: Trust
    leaf: Store
    authorities: Store


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The certificates as one check has read them, with the versions of the objects that hold them.

    A step that writes an object passes the version that was read. The write fails if another process has changed the
    object since.

    Attributes:
        observed: the certificates and the published CAs.
        configurations: the webhook configurations as they were read. A write to one that has changed since fails.
        leaf_version: the version of the served certificate, as `Store.load` returned it.
        authorities_version: the version of the CAs, as `Store.load` returned it.
    """

    observed: Observation
    configurations: Sequence[Configuration]
    leaf_version: str
    authorities_version: str


def reconcile(places: Places, settings: Certificates, now: Callable[[], datetime]) -> Observation:
    """Takes all due steps in the renewal of the webhook's certificates; returns the certificates that are then stored.

    Args:
        places: the stores of the certificates, and the webhook configurations.
        settings: the lifetimes and the names of certificates.
        now: returns the present time, with a time zone.

    Raises:
        ChainError: a store or a configuration cannot be read or written, or another process keeps changing them.
    """
    for _ in range(MOST_STEPS):
        snapshot = _observe(places)
        moment = now()
        step = next_step(snapshot.observed, settings, moment)
        if step is Step.NOTHING:
            return snapshot.observed
        if _take_step(step, snapshot, places, settings, moment):
            _log.info("certificates changed", step=step.name)
    raise ChainError("another process changes the certificates again and again")


def chain_of(observed: Observation) -> Chain:
    """Returns the certificate and the key, among the stored ones, that the webhook's server presents.

    Raises:
        ChainError: there is no certificate.
    """
    if observed.leaf is None:
        raise ChainError("there is no certificate")
    return Chain(observed.leaf.certificate_pem, observed.leaf.key_pem)


def _observe(places: Places) -> _Snapshot:
    """Reads the stores and the webhook configurations, in an order that keeps two processes from breaking trust.

    The webhook configurations are read before the authorities. CAs are published only if the configurations have not
    changed since, so that older CAs never replace later ones. The certificate, too, is read before the authorities. The
    certificate is replaced only if it has not changed since, so that an authority which was dropped meanwhile never
    issues the new certificate.
    """
    configurations = places.configurations.read()
    leaf, leaf_version = places.leaf.load()
    authorities, authorities_version = places.authorities.load()
    observed = Observation(published(configurations), unpack_leaf(leaf), unpack_authorities(authorities))
    return _Snapshot(observed, configurations, leaf_version, authorities_version)


def _take_step(step: Step, snapshot: _Snapshot, places: Places, settings: Certificates, now: datetime) -> bool:
    """Takes a step of the renewal; returns False if another process has changed the object to write since the snapshot.

    Nothing is written then, but PUBLISH has perhaps written one of the two webhook configurations.
    """
    authorities = snapshot.observed.authorities
    if authorities is None or step is Step.START:
        changed = first_authorities(snapshot.observed.published, settings, now)
    elif step is Step.PUBLISH:
        return places.configurations.publish(snapshot.configurations, authorities.bundle)
    elif step is Step.ISSUE_LEAF:
        return places.leaf.save(pack_leaf(new_leaf(authorities, settings, now)), snapshot.leaf_version)
    else:
        changed = _changed(step, authorities, settings, now)
    return places.authorities.save(pack_authorities(changed), snapshot.authorities_version)


def _changed(step: Step, authorities: Authorities, settings: Certificates, now: datetime) -> Authorities:
    if step is Step.NOTE_PUBLICATION:
        return seen_published(authorities, now)
    if step is Step.TRUST_NEW_AUTHORITY:
        return with_new_authority(authorities, settings, now)
    return newest_alone(authorities)


def cluster_places(api: KubernetesAPI, settings: Certificates) -> Places:
    """Returns the places of the webhook's certificates in a cluster: two Secrets, and the webhook configurations.

    Args:
        api: the API server.
        settings: the names of the Secrets and their namespace.
    """
    return Places(
        configurations=Configurations(api),
        leaf=SecretStore(api, settings.namespace, settings.secret),
        authorities=SecretStore(api, settings.namespace, settings.authority_secret),
    )


def run_rotation(
    places: Places,
    settings: Certificates,
    now: Callable[[], datetime],
    wait: Wait,
    alive: Path | None = None,
) -> None:
    """Keeps the webhook's certificates and configurations current until `wait` returns true.

    Args:
        places: the stores of the certificates, and the webhook configurations.
        settings: the lifetimes and names of certificates, and the interval between two checks.
        now: returns the present time, with a time zone.
        wait: sleeps for the given seconds, and returns whether the process ends.
        alive: a file to touch after each check, by which a probe sees that the checks go on; None for no file.
    """
    while True:
        try:
            reconcile(places, settings, now)
        except ChainError as error:
            _log.error("certificates not kept", error=str(error))
        if alive is not None:
            alive.touch()
        if wait(settings.check_seconds):
            return
