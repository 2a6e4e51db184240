"""The webhook's own CA and certificate, and how they are renewed without anybody ceasing to trust.

A new authority is first trusted beside the old one. Only once every API server had time to learn of it does a
certificate of its own get served, and only once every replica had time to serve that is the old authority dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from fairgpu.certificates import CertificateError, Pair, expires_at, make_authority, make_leaf, renewal_due, serves
from fairgpu.serving.tls import Chain
from webhook.settings import Certificates

AUTHORITY_NAME = "fairgpu-webhook"
BUNDLE, AUTHORITY_KEY, LEAF, LEAF_KEY, CHANGED = "ca.crt", "ca.key", "tls.crt", "tls.key", "changed-at"

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)


class Step(Enum):
    """What is to be done next."""

    NOTHING = auto()
    START = auto()
    TRUST_NEW_AUTHORITY = auto()
    ISSUE_LEAF = auto()
    DROP_OLD_AUTHORITIES = auto()


@dataclass(frozen=True, slots=True)
class Holding:
    """What is kept.

    Attributes:
        authorities: the certificates of all that are trusted, in PEM, the newest last.
        newest: the newest of them with its key.
        leaf: what is served.
        changed_at: when the last step was taken.
    """

    authorities: tuple[bytes, ...]
    newest: Pair
    leaf: Pair
    changed_at: datetime

    @property
    def bundle(self) -> bytes:
        """All that the API server is to trust."""
        return b"".join(self.authorities)

    @property
    def chain(self) -> Chain:
        """What is presented to it."""
        return Chain(self.leaf.certificate_pem, self.leaf.key_pem)


def next_step(holding: Holding | None, settings: Certificates, now: datetime) -> Step:
    """What is due, as a function of what is held and the time."""
    if holding is None:
        return Step.START
    try:
        served_by_newest = serves(holding.leaf.certificate_pem, holding.newest.certificate_pem, settings.names)
        leaf_due = renewal_due(holding.leaf.certificate_pem, now)
        authority_due = renewal_due(holding.newest.certificate_pem, now)
        # What has ended is taken by nobody, so that nobody's trust is lost with it.
        usable = now < expires_at(holding.leaf.certificate_pem)
    except CertificateError:
        usable = False
    if not usable:
        return Step.START
    if len(holding.authorities) > 1:
        spread = now >= holding.changed_at + timedelta(seconds=settings.spread_seconds)
        step = Step.DROP_OLD_AUTHORITIES if served_by_newest else Step.ISSUE_LEAF
        return step if spread else Step.NOTHING
    if authority_due:
        return Step.TRUST_NEW_AUTHORITY
    return Step.ISSUE_LEAF if leaf_due or not served_by_newest else Step.NOTHING


def take(step: Step, holding: Holding | None, settings: Certificates, now: datetime) -> Holding:
    """What is held after a step; new keys are random, all else follows from the arguments."""
    if step is Step.START or holding is None:
        authority = _authority(settings, now)
        return Holding((authority.certificate_pem,), authority, _leaf(authority, settings, now), now)
    if step is Step.TRUST_NEW_AUTHORITY:
        authority = _authority(settings, now)
        trusted = (holding.newest.certificate_pem, authority.certificate_pem)
        return replace(holding, authorities=trusted, newest=authority, changed_at=now)
    if step is Step.ISSUE_LEAF:
        return replace(holding, leaf=_leaf(holding.newest, settings, now), changed_at=now)
    if step is Step.DROP_OLD_AUTHORITIES:
        return replace(holding, authorities=(holding.newest.certificate_pem,), changed_at=now)
    return holding


def pack(holding: Holding) -> dict[str, bytes]:
    """As it stands in a Secret or a folder."""
    return {
        BUNDLE: holding.bundle,
        AUTHORITY_KEY: holding.newest.key_pem,
        LEAF: holding.leaf.certificate_pem,
        LEAF_KEY: holding.leaf.key_pem,
        CHANGED: holding.changed_at.isoformat().encode(),
    }


def unpack(data: Mapping[str, bytes]) -> Holding | None:
    """What stands in a Secret or a folder; nothing where it is empty or no use any more."""
    try:
        authorities = tuple(_CERTIFICATE.findall(data[BUNDLE]))
        return Holding(
            authorities=authorities,
            newest=Pair(authorities[-1], data[AUTHORITY_KEY]),
            leaf=Pair(data[LEAF], data[LEAF_KEY]),
            changed_at=datetime.fromisoformat(data[CHANGED].decode()),
        )
    except (KeyError, IndexError, ValueError):
        return None


def _authority(settings: Certificates, now: datetime) -> Pair:
    return make_authority(AUTHORITY_NAME, now, timedelta(seconds=settings.authority_seconds))


def _leaf(authority: Pair, settings: Certificates, now: datetime) -> Pair:
    return make_leaf(authority, settings.names, now, timedelta(seconds=settings.leaf_seconds))
