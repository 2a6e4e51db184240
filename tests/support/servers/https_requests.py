"""One request over TLS on a connection that serves no other."""

from __future__ import annotations

import http.client


def one_request(
    connection: http.client.HTTPSConnection, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    """Returns the status and the body of the answer to a request; closes the connection in any case."""
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
