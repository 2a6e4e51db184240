"""The TLS context of a server: made once, and given a new chain while connections live on."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


class ChainError(RuntimeError):
    """The certificate chain is missing or unusable; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A server's certificate with those that vouch for it, and its key, in PEM."""

    certificates_pem: bytes
    key_pem: bytes = field(repr=False)


ReadChain = Callable[[], Chain]
"""Gives the chain to present now. Called in a thread of each worker, at its start and then again and again.

Raises ChainError where there is none to be had; a server that has one goes on with it.
"""


def read_chain_files(certificate: Path, key: Path) -> Chain:
    """A chain from two files, as a mounted Secret has them.

    Raises:
        ChainError: a file cannot be read.
    """
    try:
        return Chain(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise ChainError(f"{error.filename}: {error.strerror}") from error


class LiveContext:
    """An `ssl.SSLContext` whose chain can be changed; established connections keep what they agreed on."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.context = _server_context()
        _load(self.context, chain)

    def reload(self, chain: Chain) -> bool:
        """Presents another chain from now on, and returns whether it differs. Call it in the thread of the handshakes.

        Raises:
            ChainError: the chain cannot be used; the present one stays.
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
    """Loads through a file in memory, since the library takes paths and the key is not to touch a disk."""
    descriptor = os.memfd_create("chain", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(chain.key_pem + b"\n" + chain.certificates_pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except (ssl.SSLError, OSError) as error:
        raise ChainError(f"the certificate chain cannot be used: {error}") from error
    finally:
        os.close(descriptor)
