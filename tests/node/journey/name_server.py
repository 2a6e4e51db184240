"""The cluster's DNS as far as GPU pods ask it: the timekeeper's Service, and nothing else (RFC 1035)."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fairgpu import names

TIMEKEEPER = f"{names.TIMEKEEPER_SERVICE}.{names.SYSTEM_NAMESPACE}.svc"
DOMAIN = f"{TIMEKEEPER}.cluster.local"
PORT = 53
A, IN, SECONDS = 1, 1, 5
HEADER = struct.Struct(">6H")
RESPONSE, NO_SUCH_NAME = 0x8580, 3


@contextmanager
def name_server(address: str) -> Iterator[None]:
    """Answers at an address of this node that the Service is at the same address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, PORT))
        thread = threading.Thread(target=_serve, args=(server, socket.inet_aton(address)), name="name-server")
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
                own.sendto(b"", (address, PORT))
            thread.join()


def _serve(server: socket.socket, address: bytes) -> None:
    while True:
        query, asker = server.recvfrom(512)
        if not query:
            return
        server.sendto(answer(query, address), asker)


def answer(query: bytes, address: bytes) -> bytes:
    """The answer to a query with one question: the address, no address of that kind, or no such name."""
    number = HEADER.unpack_from(query)[0]
    labels, at = [], HEADER.size
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    question = query[HEADER.size : at + 5]
    (kind,) = struct.unpack_from(">H", query, at + 1)
    if ".".join(labels).lower() != DOMAIN:
        return HEADER.pack(number, RESPONSE | NO_SUCH_NAME, 1, 0, 0, 0) + question
    if kind != A:
        return HEADER.pack(number, RESPONSE, 1, 0, 0, 0) + question
    record = struct.pack(">HHHIH", 0xC000 | HEADER.size, A, IN, SECONDS, len(address)) + address
    return HEADER.pack(number, RESPONSE, 1, 1, 0, 0) + question + record
