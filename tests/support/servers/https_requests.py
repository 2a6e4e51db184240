"""One request over TLS on a connection of its own."""

from __future__ import annotations

import http.client


def one_request(
    connection: http.client.HTTPSConnection, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    """The status and the body of the answer; the connection is closed whatever happens."""
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
