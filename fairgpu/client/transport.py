"""Sends requests to the timekeeper's REST API, and turns its problem documents (RFC 9457) into errors for people."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any

from fairgpu.client.server import CA_FILE, SERVER, TOKEN, Server
from fairgpu.commands import CommandError

TIMEOUT_SECONDS = 30.0
MAX_ANSWER_BYTES = 64 << 20
OF_ONE_NAMESPACE = (
    "Anybody who may view a namespace may ask about it: fairgpu budget get, fairgpu sessions and fairgpu usage "
    "take -n NAMESPACE"
)
_TYPED = {
    "aggregate": "--by",
    "window": "--window",
    "step": "--step",
    "idle": "--idle",
    "forecast": "--forecast",
    "gpuHours": "GPU_HOURS",
    "effectivePeriod": "--period",
    "expires": "--expires",
    "reason": "--reason",
    "name": "--name",
}
"""The words that a person types for the fields of the REST API that a refusal may name, keyed by field."""
_ASKED = (
    ("GET /v1/budgets lists", "`fairgpu budget list` shows"),
    ("GET /v1/namespaces/NAME/usage", "with -n NAME"),
    ("if aggregate has it", "if --by has it"),
)
"""Requests to the REST API that the advice of a refusal may name, each with the words that replace it for the
command."""
_NEXT = re.compile(r'<(/[^>]*)>; rel="next"')

Json = dict[str, Any]


class UnknownOutcomeError(CommandError):
    """A request was sent, and no whole answer came: whether the timekeeper did what was asked is not known."""


class RefusedError(CommandError):
    """A request was answered with an error status, or with something that is no JSON object.

    Attributes:
        status: the HTTP status of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def asking(namespace: str | None) -> Iterator[None]:
    """Returns a context for a request to the timekeeper; if the request is forbidden, the error gets a hint.

    The hint says how to ask about one namespace. It is added only if the request is about all namespaces.

    Args:
        namespace: the namespace that the request is about; None for all namespaces.

    Raises:
        RefusedError: the with block raised it; for the status 403 the hint is added as one more line.
    """
    try:
        yield
    except RefusedError as error:
        if namespace or error.status != HTTPStatus.FORBIDDEN:
            raise
        raise RefusedError(error.status, f"{error}\n{OF_ONE_NAMESPACE}") from error


def get(server: Server, path: str) -> Json:
    """Returns the JSON object at a path of the timekeeper's REST API.

    Raises:
        CommandError: the timekeeper cannot be reached, its answer is cut off, or it refuses (RefusedError).
    """
    return _request(server, "GET", path, None, {})[1]


def post(server: Server, path: str, body: Json, headers: Mapping[str, str]) -> tuple[Json, bool]:
    """Posts a JSON object to the timekeeper's REST API.

    Args:
        server: the timekeeper, with the bearer token.
        path: the path in the REST API, such as `/v1/grants`.
        body: the object.
        headers: further headers of the request.

    Returns:
        The answer, and whether the timekeeper created an object for the request (status 201).

    Raises:
        UnknownOutcomeError: the request was sent, and no whole answer came.
        CommandError: the timekeeper cannot be reached, or refuses (RefusedError).
    """
    sent = json.dumps(body).encode()
    status, answer = _request(server, "POST", path, sent, {"Content-Type": "application/json", **headers})
    return answer, status == HTTPStatus.CREATED


def get_text(server: Server, path: str) -> tuple[str, str | None]:
    """Returns the text at a path of the timekeeper's REST API, and the path of the next page, None for the last.

    Raises:
        CommandError: the timekeeper cannot be reached, its answer is cut off, or it refuses (RefusedError).
    """
    response, data = _exchange(server, "GET", path, None, {"Accept": "text/csv, application/problem+json"})
    if response.status >= 400:
        _answer(response, data)
    following = _NEXT.fullmatch(response.getheader("Link", ""))
    return data.decode(), following[1] if following else None


def _request(
    server: Server, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> tuple[int, Json]:
    response, data = _exchange(server, method, path, body, headers)
    return response.status, _answer(response, data)


def _exchange(
    server: Server, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPSConnection(server.host, server.port, timeout=TIMEOUT_SECONDS, context=server.tls)
    common = {
        "Authorization": f"Bearer {server.token}",
        "Accept": "application/json, application/problem+json",
        "User-Agent": "fairgpu",
    }
    sent = False
    try:
        connection.connect()
        sent = True
        connection.request(method, server.base_path + path, body, {**common, **headers})
        response = connection.getresponse()
        return response, _whole_body(response)
    except ssl.SSLCertVerificationError as error:
        raise CommandError(
            f"https://{server.host}:{server.port} is not trusted: {error.verify_message}.\n"
            "Ask your admin for the CA that signed its certificate, or fetch it, and name the file:\n"
            "    kubectl -n fairgpu-system get configmap fairgpu-timekeeper-ca"
            " -o jsonpath='{.data.ca\\.crt}' > fairgpu-ca.crt\n"
            f"    export {CA_FILE}=fairgpu-ca.crt"
        ) from error
    except IncompleteRead as error:
        come = len(error.partial)
        announced = f" of {come + error.expected}" if error.expected else ""
        advice = ": run the command again" if method == "GET" else ""
        raise UnknownOutcomeError(
            f"the answer of https://{server.host}:{server.port} was cut off after {come}{announced} bytes{advice}"
        ) from error
    except (OSError, HTTPException, ValueError) as error:
        raise (UnknownOutcomeError if sent else CommandError)(
            f"https://{server.host}:{server.port} ({SERVER}) does not answer: {error}\n"
            "Look whether the address is right and, where you forward a port, whether kubectl port-forward still runs"
        ) from error
    finally:
        connection.close()


def _whole_body(response: HTTPResponse) -> bytes:
    """Returns the body of an answer.

    Raises:
        IncompleteRead: the connection ended before the whole body came. http.client itself detects that only if a body
            is read without a limit.
        CommandError: the body has more than MAX_ANSWER_BYTES.
    """
    data = response.read(MAX_ANSWER_BYTES + 1)
    if len(data) > MAX_ANSWER_BYTES:
        raise CommandError(f"the answer has more than {MAX_ANSWER_BYTES >> 20} MiB: ask for less")
    if response.length:
        raise IncompleteRead(data, response.length)
    return data


def _answer(response: HTTPResponse, data: bytes) -> Json:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if response.status >= 400:
        raise RefusedError(response.status, explain(response.status, response.reason, document))
    if not isinstance(document, dict):
        raise RefusedError(response.status, f"the answer is no JSON object: is {SERVER} the timekeeper?")
    return document


def explain(status: int, reason: str, document: Any) -> str:
    """Returns the message of a refused request: the faults of the problem document, one a line.

    A message about a token that is not valid (status 401) also says how to make a new one.

    Args:
        status: the HTTP status of the answer.
        reason: the reason phrase of the answer, for an answer without a problem document.
        document: the body of the answer, as JSON; None if it was no JSON.
    """
    problem = document if isinstance(document, dict) else {}
    head = f"{problem.get('title') or reason} ({status}):"
    faults = problem.get("errors") if status == HTTPStatus.UNPROCESSABLE_ENTITY else None
    said = [_of_fault(fault) for fault in faults if isinstance(fault, dict)] if isinstance(faults, list) else []
    if len(said) > 1:
        lines = [head, *(f"    {each}" for each in said)]
    else:
        lines = [f"{head} {said[0] if said else problem.get('detail') or 'no explanation was given'}"]
    lines = [_as_asked(line) for line in lines]
    if status == 401:
        lines.append(f"Make a new token: export {TOKEN}=$(kubectl create token ACCOUNT -n NAMESPACE)")
    return "\n".join(lines)


def _of_fault(fault: Mapping[str, Any]) -> str:
    """Formats a fault of a problem document as a line, which names the command's option and not the request's field."""
    field = str(fault.get("field"))
    return f"{_TYPED.get(field, field)}: given {fault.get('given')}; allowed: {fault.get('allowed')}"


def _as_asked(line: str) -> str:
    """Returns a line of the timekeeper's advice in which commands of `fairgpu` replace requests to the REST API."""
    for question, command in _ASKED:
        line = line.replace(question, command)
    return line
