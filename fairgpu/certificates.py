"""A private certificate authority and the server certificates that it signs: ECDSA on P-256, X.509 v3.

The certificates follow RFC 5280 and the demands of Go's verifier on servers: subject alternative names, and key
identifiers, which distinguish two authorities of the same name.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATED = timedelta(minutes=5)
"""The time by which a new certificate is valid before it is made, since the clocks of machines differ."""

RENEW_AT = 2 / 3
"""The part of a certificate's life after which it is renewed."""


_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""The errors of the library on a certificate or key that it cannot read."""


class CertificateError(ValueError):
    """A text in PEM has no usable certificate or key; the message states the fault."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key.

    Attributes:
        certificate_pem: the certificate, in PEM.
        key_pem: the private key, in PEM.
    """

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)


def make_authority(name: str, now: datetime, life: timedelta) -> Pair:
    """Makes a self-signed certificate authority, which signs server certificates and no further authority.

    Args:
        name: the common name of the authority.
        now: the present time, with a time zone.
        life: the time from `now` for which the certificate is valid.

    Returns:
        The authority's certificate and private key.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, subject, key, now, now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(_pem(certificate), _key_pem(key))


def make_leaf(authority: Pair, names: Sequence[str], now: datetime, life: timedelta) -> Pair:
    """Makes a server certificate, whose validity ends no later than that of the authority which signs it.

    Args:
        authority: the authority's certificate and private key.
        names: the DNS names and IP addresses of the server, at least one.
        now: the present time, with a time zone.
        life: the time from `now` for which the certificate is valid.

    Returns:
        The server's certificate and private key.

    Raises:
        CertificateError: the authority's PEM is unreadable, or its validity has ended.
    """
    issuer, issuer_key = _read(authority)
    if issuer.not_valid_after_utc <= now:
        raise CertificateError(f"the authority's certificate ended at {issuer.not_valid_after_utc}")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    end = min(now + life, issuer.not_valid_after_utc)
    certificate = (
        _builder(subject, issuer.subject, key, now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
    return Pair(_pem(certificate), _key_pem(key))


def renewal_due(certificate_pem: bytes, now: datetime) -> bool:
    """Returns whether a certificate must be replaced: two thirds of its life are over, or it is not valid yet.

    Args:
        certificate_pem: the certificate, in PEM.
        now: the present time, with a time zone.

    Raises:
        CertificateError: the text is no certificate.
    """
    certificate = load(certificate_pem)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    made = start + BACKDATED
    return now < start or now >= made + (end - made) * RENEW_AT


def has_begun(certificate_pem: bytes, now: datetime) -> bool:
    """Returns whether a certificate's validity has begun; it has not if the clock of the certificate's maker was ahead.

    Args:
        certificate_pem: the certificate, in PEM.
        now: the present time, with a time zone.

    Raises:
        CertificateError: the text is no certificate.
    """
    return now >= load(certificate_pem).not_valid_before_utc


def expires_at(certificate_pem: bytes) -> datetime:
    """Returns the end of a certificate's validity, in UTC.

    Raises:
        CertificateError: the text is no certificate.
    """
    return load(certificate_pem).not_valid_after_utc


def issued_at(certificate_pem: bytes) -> datetime:
    """Returns the time at which `make_leaf` or `make_authority` made a certificate, in UTC.

    Raises:
        CertificateError: the text is no certificate.
    """
    return load(certificate_pem).not_valid_before_utc + BACKDATED


def matches(pair: Pair) -> bool:
    """Returns whether a certificate and a private key are readable PEM, and the key belongs to the certificate."""
    try:
        certificate, key = _read(pair)
    except CertificateError:
        return False
    return certificate.public_key() == key.public_key()


def serves(leaf_pem: bytes, authority_pem: bytes, names: Sequence[str]) -> bool:
    """Returns whether an authority signed a server's certificate, and the certificate covers all names of the server.

    Args:
        leaf_pem: the server's certificate, in PEM.
        authority_pem: the authority's certificate, in PEM.
        names: the DNS names and IP addresses of the server.

    Raises:
        CertificateError: one of the texts is not a certificate.
    """
    leaf, authority = load(leaf_pem), load(authority_pem)
    try:
        leaf.verify_directly_issued_by(authority)
        covered = set(leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (*_UNREADABLE, InvalidSignature, x509.ExtensionNotFound):
        return False
    return covered >= {_general_name(name) for name in names}


def load(certificate_pem: bytes) -> x509.Certificate:
    """Parses a certificate from PEM, all its parts included.

    Raises:
        CertificateError: the text has no certificate, or a part of it cannot be read.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        # The library parses these only when they are asked for.
        _ = certificate.subject, certificate.extensions, certificate.public_key()
    except _UNREADABLE as error:
        raise CertificateError(f"no certificate in PEM: {error}") from error
    return certificate


def published_bundle(value: object) -> bytes:
    """Returns the certificates in a field `caBundle` of a Kubernetes object, in PEM; empty if the field is no base64.

    Args:
        value: the field's value, PEM in base64.
    """
    try:
        return base64.b64decode(value) if isinstance(value, str) else b""
    except ValueError:
        return b""


def utc_now() -> datetime:
    """Returns the present time in UTC, for callers without a clock of their own."""
    return datetime.now(UTC)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _read(pair: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        key = serialization.load_pem_private_key(pair.key_pem, password=None)
    except _UNREADABLE as error:
        raise CertificateError(f"no private key in PEM: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("the private key is not on an elliptic curve")
    return load(pair.certificate_pem), key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
