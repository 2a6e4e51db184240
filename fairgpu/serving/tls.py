"""The TLS context of a server, which takes a new certificate chain while connections stay open."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


class ChainError(RuntimeError):
    """A server's certificate chain is missing or unusable; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A server's certificate chain and private key.

    Attributes:
        certificates_pem: the server's certificate and the certificates that signed it, in PEM.
        key_pem: the private key, in PEM.
    """

    certificates_pem: bytes
    key_pem: bytes = field(repr=False)


ReadChain = Callable[[], Chain]
"""Returns the chain to present now; called repeatedly in a thread of each worker.

Raises ChainError if there is no chain; a server that has one goes on with it.
"""


def read_chain_files(certificate: Path, key: Path) -> Chain:
    """Reads a server's certificate chain and key from two files, as a mounted Secret has them.

    Args:
        certificate: the file of the server's certificate and the certificates that signed it, in PEM.
        key: the file of the private key.

    Raises:
        ChainError: a file is unreadable.
    """
    try:
        return Chain(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise ChainError(f"{error.filename}: {error.strerror}") from error


class LiveContext:
    """A server's TLS context whose certificate chain can be replaced; established connections keep the old one.

    The first chain, too, must be valid: making the object raises ChainError otherwise.

    Attributes:
        chain: the present chain.
        context: the `ssl.SSLContext` for new connections.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.context = _server_context()
        _load(self.context, chain)

    def reload(self, chain: Chain) -> bool:
        """Presents a certificate chain to new connections from now on; returns whether it differs from the present one.

        Only the thread of the TLS handshakes may call this.

        Raises:
            ChainError: the chain is invalid; the present one stays.
        """
        if chain == self.chain:
            return False
        # A key that does not fit would leave the live context with half of the new pair.
        _load(_server_context(), chain)
        _load(self.context, chain)
        self.chain = chain
        return True


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, chain: Chain) -> None:
    """Loads a certificate chain and its key into a TLS context.

    The library takes paths alone, and the key must not reach a disk: so both go through a file in memory.

    Raises:
        ChainError: the chain is invalid.
    """
    descriptor = os.memfd_create("chain", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(chain.key_pem + b"\n" + chain.certificates_pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except (ssl.SSLError, OSError) as error:
        raise ChainError(f"the certificate chain cannot be used: {error}") from error
    finally:
        os.close(descriptor)
