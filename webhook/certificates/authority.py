"""The CA and the certificate of the webhook, and the order in which they are renewed so that trust is never missing.

API servers first trust a new authority beside the old one. The new authority issues a certificate only after every API
server has had time to read it. The old authority is dropped only after every replica has had time to serve the new
certificate. Each step changes one stored object; only PUBLISH changes both webhook configurations, and the next check
completes it if it was interrupted. So a process that dies leaves nothing half done.
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
    has_begun,
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
    """The next step in the renewal of the webhook's authority and certificate.

    Attributes:
        NOTHING: no step is due now.
        START: makes a first authority, as no stored one can sign.
        PUBLISH: writes the CAs into the webhook configurations.
        NOTE_PUBLICATION: stores the time at which all webhook configurations had the CAs.
        TRUST_NEW_AUTHORITY: adds a new authority beside the old ones.
        ISSUE_LEAF: issues a certificate, which the newest authority signs.
        DROP_OLD_AUTHORITIES: keeps the newest authority alone.
    """

    NOTHING = auto()
    START = auto()
    PUBLISH = auto()
    NOTE_PUBLICATION = auto()
    TRUST_NEW_AUTHORITY = auto()
    ISSUE_LEAF = auto()
    DROP_OLD_AUTHORITIES = auto()


@dataclass(frozen=True, slots=True)
class Authorities:
    """The CAs that API servers must trust as signers of the webhook's certificate.

    Attributes:
        trusted: the certificates of the CAs in PEM, the newest last.
        newest_key: the private key of the newest CA, in PEM; the keys of older ones are not kept.
        published_at: the time at which every webhook configuration was seen to name exactly these CAs; None before.
    """

    trusted: tuple[bytes, ...]
    newest_key: bytes = field(repr=False)
    published_at: datetime | None = None

    @property
    def newest(self) -> Pair:
        """The newest CA, which signs certificates, with its key."""
        return Pair(self.trusted[-1], self.newest_key)

    @property
    def bundle(self) -> bytes:
        """The certificates of all CAs in PEM, which each webhook configuration must have as its `caBundle`."""
        return b"".join(self.trusted)


@dataclass(frozen=True, slots=True)
class Observation:
    """The stored certificates and the published CAs, from which the next step of a renewal follows.

    Attributes:
        published: the `caBundle` of each webhook of each configuration; empty bytes if a webhook has none.
        leaf: the certificate that the replicas serve, and its key; None if there is none.
        authorities: the CAs to trust; None if there are none.
    """

    published: frozenset[bytes]
    leaf: Pair | None
    authorities: Authorities | None


def next_step(observed: Observation, settings: Certificates, now: datetime) -> Step:
    """Returns the next step in the renewal of the webhook's authority and certificate.

    Args:
        observed: the stored certificates and the published CAs.
        settings: the lifetimes and the names of certificates.
        now: the present time, with a time zone.
    """
    authorities, leaf = observed.authorities, observed.leaf
    if authorities is None or not _can_sign(authorities, now):
        return Step.START
    if observed.published - {authorities.bundle}:
        return Step.PUBLISH
    if authorities.published_at is None:
        return Step.NOTE_PUBLICATION
    if leaf is None or not _is_accepted(leaf, authorities.trusted, settings, now):
        # No API server accepts the served certificate: waiting helps nothing. A clock that was ahead may have made it,
        # and the authority as well.
        return Step.ISSUE_LEAF if has_begun(authorities.trusted[-1], now) else Step.TRUST_NEW_AUTHORITY
    return _step_of_renewal(authorities, authorities.published_at, leaf, settings, now)


def _step_of_renewal(
    authorities: Authorities, published_at: datetime, leaf: Pair, settings: Certificates, now: datetime
) -> Step:
    """Returns the next step of a renewal while API servers accept the certificate that the webhook's replicas serve.

    Args:
        authorities: the CAs to trust, which every webhook configuration has.
        published_at: the time at which every webhook configuration was first seen to have these CAs.
        leaf: the certificate that the replicas serve, and its key.
        settings: the lifetimes and the names of certificates.
        now: the present time, with a time zone.
    """
    spread = timedelta(seconds=settings.spread_seconds)
    if published_at > now:
        return Step.NOTE_PUBLICATION  # the clock of the process that noted it was ahead
    if not serves(leaf.certificate_pem, authorities.trusted[-1], settings.names):
        return Step.ISSUE_LEAF if now >= published_at + spread else Step.NOTHING
    if len(authorities.trusted) > 1:
        served = now >= max(published_at, issued_at(leaf.certificate_pem)) + spread
        return Step.DROP_OLD_AUTHORITIES if served else Step.NOTHING
    if renewal_due(authorities.trusted[-1], now):
        return Step.TRUST_NEW_AUTHORITY
    return Step.ISSUE_LEAF if renewal_due(leaf.certificate_pem, now) else Step.NOTHING


def first_authorities(published: Collection[bytes], settings: Certificates, now: datetime) -> Authorities:
    """Returns the first CAs to trust: a new one, which signs certificates, and those published that have not expired.

    Args:
        published: the bundles of CAs in the webhook configurations, in PEM.
        settings: the lifetime of a CA.
        now: the present time, with a time zone.
    """
    candidates = {certificate for bundle in published for certificate in certificates_in(bundle)}
    trusted = sorted(certificate for certificate in candidates if _holds(certificate, now))
    made = make_authority(AUTHORITY_NAME, now, timedelta(seconds=settings.authority_seconds))
    return Authorities((*trusted, made.certificate_pem), made.key_pem)


def with_new_authority(authorities: Authorities, settings: Certificates, now: datetime) -> Authorities:
    """Returns the CAs to trust with a new CA beside them, which signs all later certificates.

    Args:
        authorities: the CAs so far.
        settings: the lifetime of a CA.
        now: the present time, with a time zone.
    """
    made = make_authority(AUTHORITY_NAME, now, timedelta(seconds=settings.authority_seconds))
    return Authorities((*authorities.trusted, made.certificate_pem), made.key_pem)


def newest_alone(authorities: Authorities) -> Authorities:
    """Returns the newest of the CAs to trust as the only one; the older CAs sign no certificates any more."""
    return Authorities(authorities.trusted[-1:], authorities.newest_key)


def seen_published(authorities: Authorities, now: datetime) -> Authorities:
    """Returns the CAs to trust, with the note that every webhook configuration has them now.

    Args:
        authorities: the CAs, which every webhook configuration has.
        now: the present time, with a time zone.
    """
    return replace(authorities, published_at=now)


def new_leaf(authorities: Authorities, settings: Certificates, now: datetime) -> Pair:
    """Returns a new server certificate of the webhook, which the newest authority signs, with its key.

    Args:
        authorities: the CAs, with the key of the newest one.
        settings: the names and the lifetime of the certificate.
        now: the present time, with a time zone.

    Raises:
        CertificateError: the newest authority's PEM is unreadable.
    """
    return make_leaf(authorities.newest, settings.names, now, timedelta(seconds=settings.leaf_seconds))


def certificates_in(bundle: bytes) -> tuple[bytes, ...]:
    """Splits a bundle, in which certificates in PEM follow one another; returns each certificate in PEM."""
    return tuple(_CERTIFICATE.findall(bundle))


def pack_authorities(authorities: Authorities) -> dict[str, bytes]:
    """Returns the CAs, the newest one's key and the time of publication as bytes, keyed by their names in a `Store`."""
    published = authorities.published_at
    noted = {PUBLISHED: published.isoformat().encode()} if published else {}
    return {BUNDLE: authorities.bundle, AUTHORITY_KEY: authorities.newest_key, **noted}


def unpack_authorities(data: Mapping[str, bytes]) -> Authorities | None:
    """Returns the CAs that a `Store` holds; None if there is no certificate or no key.

    The result is also None if the time of publication cannot be read, or has no time zone. Certificates and key are not
    checked.

    Args:
        data: the bytes in the store, keyed by name.
    """
    try:
        trusted = certificates_in(data[BUNDLE])
        published = datetime.fromisoformat(data[PUBLISHED].decode()) if PUBLISHED in data else None
        if not trusted or (published is not None and published.tzinfo is None):
            return None
        return Authorities(trusted, data[AUTHORITY_KEY], published)
    except (KeyError, ValueError):
        return None


def pack_leaf(leaf: Pair) -> dict[str, bytes]:
    """Returns a certificate and its key as bytes, keyed by their names in a `Store`."""
    return {LEAF: leaf.certificate_pem, LEAF_KEY: leaf.key_pem}


def unpack_leaf(data: Mapping[str, bytes]) -> Pair | None:
    """Returns the certificate and the key that a `Store` holds; None if one of the two is missing.

    Args:
        data: the bytes in the store, keyed by name.
    """
    return Pair(data[LEAF], data[LEAF_KEY]) if LEAF in data and LEAF_KEY in data else None


def _can_sign(authorities: Authorities, now: datetime) -> bool:
    newest = authorities.newest
    return matches(newest) and _holds(newest.certificate_pem, now)


def _is_accepted(leaf: Pair, trusted: Collection[bytes], settings: Certificates, now: datetime) -> bool:
    """Whether API servers accept the webhook's certificate.

    Args:
        leaf: the webhook's certificate and its key.
        trusted: the CAs that the API servers trust, in PEM.
        settings: the names that the certificate must cover.
        now: the present time, with a time zone.
    """
    certificate = leaf.certificate_pem
    if not matches(leaf) or not _is_valid(certificate, now):
        return False
    return any(serves(certificate, authority, settings.names) for authority in trusted if _is_valid(authority, now))


def _is_valid(certificate_pem: bytes, now: datetime) -> bool:
    return _holds(certificate_pem, now) and has_begun(certificate_pem, now)


def _holds(certificate_pem: bytes, now: datetime) -> bool:
    try:
        return now < expires_at(certificate_pem)
    except CertificateError:
        return False
