"""The CA and the certificate of the webhook, and the order in which they are renewed so that trust is never missing.

API servers first trust a new authority beside the old one. The new one issues a certificate only once every API server
had time to read the new authority. The old one is dropped only once every replica had time to serve the new
certificate. Each step changes one stored object, so a process that dies between two steps leaves nothing half done.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from fairgpu.certificates import (
    CertificateError,
    Pair,
    expires_at,
    issued_at,
    make_authority,
    make_leaf,
    matches,
    renewal_due,
    serves,
)
from webhook.settings import Certificates

AUTHORITY_NAME = "fairgpu-webhook"
BUNDLE, AUTHORITY_KEY, PUBLISHED = "ca.crt", "ca.key", "published-at"
LEAF, LEAF_KEY = "tls.crt", "tls.key"

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)


class Step(Enum):
    """The next step of a renewal."""

    NOTHING = auto()
    START = auto()
    PUBLISH = auto()
    NOTE_PUBLICATION = auto()
    TRUST_NEW_AUTHORITY = auto()
    ISSUE_LEAF = auto()
    DROP_OLD_AUTHORITIES = auto()


@dataclass(frozen=True, slots=True)
class Authorities:
    """The CAs that API servers must trust.

    Attributes:
        trusted: their certificates in PEM, the newest last.
        newest_key: the key of the newest, in PEM; the keys of older ones are gone.
        published_at: the instant at which every webhook configuration was observed with exactly these; None before.
    """

    trusted: tuple[bytes, ...]
    newest_key: bytes = field(repr=False)
    published_at: datetime | None = None

    @property
    def newest(self) -> Pair:
        """The authority that signs certificates."""
        return Pair(self.trusted[-1], self.newest_key)

    @property
    def bundle(self) -> bytes:
        """The bundle that each webhook configuration must have."""
        return b"".join(self.trusted)


@dataclass(frozen=True, slots=True)
class Observation:
    """The certificates and configurations from which the next step follows.

    Attributes:
        published: the bundle of each webhook of each configuration; empty bytes where there is none.
        leaf: the certificate that the replicas serve, and its key.
        authorities: the CAs to trust.
    """

    published: frozenset[bytes]
    leaf: Pair | None
    authorities: Authorities | None


def next_step(observed: Observation, settings: Certificates, now: datetime) -> Step:
    """Decides on the next step from the observed state and the time."""
    authorities, leaf = observed.authorities, observed.leaf
    if authorities is None or not _can_sign(authorities, now):
        return Step.START
    if observed.published - {authorities.bundle}:
        return Step.PUBLISH
    if authorities.published_at is None:
        return Step.NOTE_PUBLICATION
    if leaf is None or not _is_accepted(leaf, authorities.trusted, settings, now):
        return Step.ISSUE_LEAF  # no API server accepts the served certificate: waiting helps nothing
    return _step_of_renewal(authorities, authorities.published_at, leaf, settings, now)


def _step_of_renewal(
    authorities: Authorities, published_at: datetime, leaf: Pair, settings: Certificates, now: datetime
) -> Step:
    """Decides on the next step while every served certificate is trusted."""
    spread = timedelta(seconds=settings.spread_seconds)
    if not serves(leaf.certificate_pem, authorities.trusted[-1], settings.names):
        return Step.ISSUE_LEAF if now >= published_at + spread else Step.NOTHING
    if len(authorities.trusted) > 1:
        served = now >= max(published_at, issued_at(leaf.certificate_pem)) + spread
        return Step.DROP_OLD_AUTHORITIES if served else Step.NOTHING
    if renewal_due(authorities.trusted[-1], now):
        return Step.TRUST_NEW_AUTHORITY
    return Step.ISSUE_LEAF if renewal_due(leaf.certificate_pem, now) else Step.NOTHING


def first_authorities(published: Collection[bytes], settings: Certificates, now: datetime) -> Authorities:
    """Makes a new authority beside those that API servers trust now, so that served certificates stay trusted."""
    candidates = {certificate for bundle in published for certificate in certificates_in(bundle)}
    trusted = sorted(certificate for certificate in candidates if _holds(certificate, now))
    made = make_authority(AUTHORITY_NAME, now, timedelta(seconds=settings.authority_seconds))
    return Authorities((*trusted, made.certificate_pem), made.key_pem)


def with_new_authority(authorities: Authorities, settings: Certificates, now: datetime) -> Authorities:
    """Adds a new authority, which signs from now on."""
    made = make_authority(AUTHORITY_NAME, now, timedelta(seconds=settings.authority_seconds))
    return Authorities((*authorities.trusted, made.certificate_pem), made.key_pem)


def newest_alone(authorities: Authorities) -> Authorities:
    """Drops the authorities that sign no more."""
    return Authorities(authorities.trusted[-1:], authorities.newest_key)


def seen_published(authorities: Authorities, now: datetime) -> Authorities:
    """Records that every configuration has had exactly these authorities from `now` on."""
    return replace(authorities, published_at=now)


def new_leaf(authorities: Authorities, settings: Certificates, now: datetime) -> Pair:
    """Makes a certificate under the newest authority."""
    return make_leaf(authorities.newest, settings.names, now, timedelta(seconds=settings.leaf_seconds))


def certificates_in(bundle: bytes) -> tuple[bytes, ...]:
    """Returns the certificates of a bundle, each in PEM."""
    return tuple(_CERTIFICATE.findall(bundle))


def pack_authorities(authorities: Authorities) -> dict[str, bytes]:
    """Encodes the authorities for a Secret or a folder."""
    published = authorities.published_at
    noted = {PUBLISHED: published.isoformat().encode()} if published else {}
    return {BUNDLE: authorities.bundle, AUTHORITY_KEY: authorities.newest_key, **noted}


def unpack_authorities(data: Mapping[str, bytes]) -> Authorities | None:
    """Decodes the authorities of a Secret or a folder; None where they are missing or unreadable."""
    try:
        trusted = certificates_in(data[BUNDLE])
        published = datetime.fromisoformat(data[PUBLISHED].decode()) if PUBLISHED in data else None
        return Authorities(trusted, data[AUTHORITY_KEY], published) if trusted else None
    except (KeyError, ValueError):
        return None


def pack_leaf(leaf: Pair) -> dict[str, bytes]:
    """Encodes the certificate for a Secret or a folder."""
    return {LEAF: leaf.certificate_pem, LEAF_KEY: leaf.key_pem}


def unpack_leaf(data: Mapping[str, bytes]) -> Pair | None:
    """Decodes the certificate of a Secret or a folder; None where a part is missing."""
    return Pair(data[LEAF], data[LEAF_KEY]) if LEAF in data and LEAF_KEY in data else None


def _can_sign(authorities: Authorities, now: datetime) -> bool:
    newest = authorities.newest
    return matches(newest) and _holds(newest.certificate_pem, now)


def _is_accepted(leaf: Pair, trusted: Collection[bytes], settings: Certificates, now: datetime) -> bool:
    """Whether API servers that trust these accept the certificate."""
    certificate = leaf.certificate_pem
    if not matches(leaf) or not _holds(certificate, now):
        return False
    return any(serves(certificate, authority, settings.names) for authority in trusted if _holds(authority, now))


def _holds(certificate_pem: bytes, now: datetime) -> bool:
    try:
        return now < expires_at(certificate_pem)
    except CertificateError:
        return False
