"""The certificate authority of one test cluster. Keys are P-256: they are made in well under a millisecond."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=1)


@dataclass(frozen=True)
class Files:
    """The files of a certificate and its key, both PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs the certificates of servers, components and users; its own lies at `certificate`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test cluster")])
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def server(self, name: str, hosts: Sequence[str]) -> Files:
        """Return the certificate of a server that answers at `hosts`, names or addresses."""
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        return self._issue(name, x509.Name([_common(name)]), ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def client(self, user: str, groups: Sequence[str] = ()) -> Files:
        """Return the certificate by which the API server knows a user and their groups (its X.509 authenticator)."""
        organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        name = x509.Name([*organisations, _common(user)])
        return self._issue(user.replace("/", "_"), name, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(
        self, file: str, subject: x509.Name, usage: x509.ObjectIdentifier, names: x509.SubjectAlternativeName | None
    ) -> Files:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        files = Files(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        files.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        write_private_key(files.key, key)
        return files


def service_account_keys(folder: Path) -> Files:
    """Return the pair with which service account tokens are signed; `certificate` is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    files = Files(folder / "service-account.pub", folder / "service-account.key")
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    files.certificate.write_bytes(public)
    write_private_key(files.key, key)
    return files


def write_private_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a key as PEM, readable by its owner alone."""
    path.touch(mode=0o600)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(encoded)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
    )


def _common(name: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, name)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
