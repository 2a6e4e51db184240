"""Looks at the CA, the certificate and the webhook configurations, and takes the steps that are due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

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
from webhook.certificates.storing import Store
from webhook.certificates.trust import Configuration, Trust, published
from webhook.settings import Certificates

_log = structlog.get_logger(__name__)

MOST_STEPS = 12
"""The first installation takes four; the others are for those that somebody else takes at the same time."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything is."""

    configurations: Trust
    leaf: Store
    authorities: Store


@dataclass(frozen=True, slots=True)
class _Look:
    """An observation with the versions that a change of it is held to."""

    observed: Observation
    configurations: Sequence[Configuration]
    leaf_version: str
    authorities_version: str


def keep(places: Places, settings: Certificates, now: Callable[[], datetime]) -> Observation:
    """Takes all steps that are due, and returns what then stands.

    Raises:
        ChainError: something cannot be read or written, or is changed by somebody else again and again.
    """
    for _ in range(MOST_STEPS):
        look = _look(places)
        moment = now()
        step = next_step(look.observed, settings, moment)
        if step is Step.NOTHING:
            return look.observed
        if _take(step, look, places, settings, moment):
            _log.info("certificates changed", step=step.name)
    raise ChainError("the certificates are changed by somebody else again and again")


def chain_of(observed: Observation) -> Chain:
    """What a server is to present.

    Raises:
        ChainError: there is no certificate.
    """
    if observed.leaf is None:
        raise ChainError("there is no certificate")
    return Chain(observed.leaf.certificate_pem, observed.leaf.key_pem)


def _look(places: Places) -> _Look:
    """Reads everything, in an order that keeps two processes at once from breaking trust.

    A bundle is published only where the configurations are still those that were read before the authorities, so that
    no older bundle ever replaces a later one. A certificate is replaced only where it is still the one that was read
    before the authorities, so that none is issued under an authority that was dropped meanwhile.
    """
    configurations = places.configurations.read()
    leaf, leaf_version = places.leaf.load()
    authorities, authorities_version = places.authorities.load()
    observed = Observation(published(configurations), unpack_leaf(leaf), unpack_authorities(authorities))
    return _Look(observed, configurations, leaf_version, authorities_version)


def _take(step: Step, look: _Look, places: Places, settings: Certificates, now: datetime) -> bool:
    """Takes a step; False where somebody else was faster."""
    authorities = look.observed.authorities
    if authorities is None or step is Step.START:
        changed = first_authorities(look.observed.published, settings, now)
    elif step is Step.PUBLISH:
        return places.configurations.publish(look.configurations, authorities.bundle)
    elif step is Step.ISSUE_LEAF:
        return places.leaf.save(pack_leaf(new_leaf(authorities, settings, now)), look.leaf_version)
    else:
        changed = _changed(step, authorities, settings, now)
    return places.authorities.save(pack_authorities(changed), look.authorities_version)


def _changed(step: Step, authorities: Authorities, settings: Certificates, now: datetime) -> Authorities:
    if step is Step.NOTE_PUBLICATION:
        return seen_published(authorities, now)
    if step is Step.TRUST_NEW_AUTHORITY:
        return with_new_authority(authorities, settings, now)
    return newest_alone(authorities)
