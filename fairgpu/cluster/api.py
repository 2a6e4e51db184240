"""Requests to the API server with raw JSON in and out, so that no unknown field is lost on the way.

The official client supplies the transport: TLS, credentials and their renewal. Its typed models are not used.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import urllib3

if TYPE_CHECKING:
    from kubernetes import client

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 30.0
TOKEN_SECONDS = 1.0
"""The time for which a token is sent before the Kubernetes library is asked for the present one.

The library reads a rotated token, and also sets its whole configuration anew and looks for proxies in the environment:
at every request this took a fifth of the processor time.
"""
UNANSWERED = "Unanswered"
"""The reason of an ApiError of status 0 if the request was sent and not answered: the API server may have carried it
out."""

PATCH_FAILED = "the server rejected our request due to an error in our request"
"""The message to a JSON Patch of which a test fails or a path does not exist. An object that its schema forbids has the
same status, 422, and a message that names the field.
"""
_OTHER_UID = " is invalid: metadata.uid: "
"""The part of the message to a merge patch with another uid than the object's."""

_OBJECT = re.compile(r"^(<[^>]*>|\w+\(host=[^)]*\)): ")
"""The name of a connection or pool, with which urllib3 begins its message about a failure."""

Json = dict[str, Any]
Decode = Callable[[bytes], Any]
"""A function that parses a JSON document, or only the fields that its caller needs.

It raises ValueError if the document is no JSON.
"""


class ApiError(RuntimeError):
    """The API server refused a request, could not be reached, or gave an answer that cannot be used.

    `str()` of the error gives the message, after the status and the reason if the API server answered.

    Attributes:
        status: the HTTP status of a refusal; 0 if the API server gave no answer, or one that cannot be used.
        reason: the machine-readable reason of the Status object, such as Conflict or NotFound; if `status` is 0, a word
            of this client, such as UNANSWERED.
        message: the sentence of the Status object, or this client's, for people.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        """Whether the requested object does not exist."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Whether another client changed or created the requested object first."""
        return self.status == 409

    @property
    def outdated(self) -> bool:
        """Whether the object is deleted, or is not what the request supposes.

        The request supposes the object's version, its uid, or the tests of its JSON Patch.
        """
        refuted = self.status == 422 and (self.message == PATCH_FAILED or _OTHER_UID in self.message)
        return self.not_found or self.conflict or refuted

    @property
    def unanswered(self) -> bool:
        """Whether the request was sent and no whole answer came; the API server may have carried the request out."""
        return self.reason == UNANSWERED

    @property
    def gone(self) -> bool:
        """Whether the request named a resourceVersion, or the token of a list's next page, that is too old."""
        return self.status == 410


class TooLargeError(ApiError):
    """The API server's answer is longer than the caller's limit."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(0, "TooLarge", f"the API server's answer is longer than {most_bytes} bytes")


class KubernetesAPI:
    """A client of an API server, which sends all requests with the credentials of one user. Thread-safe."""

    def __init__(
        self,
        transport: client.ApiClient,
        answer_seconds: float = READ_TIMEOUT_SECONDS,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._transport = transport
        self._answer_seconds = answer_seconds
        self._answered = answered
        self._configuration = transport.configuration
        self._pool: urllib3.PoolManager = transport.rest_client.pool_manager
        self._token: tuple[str, float] = ("", float("-inf"))

    def within(self, seconds: float) -> KubernetesAPI:
        """Returns a client that shares this one's connections, and waits up to `seconds` for an answer.

        Args:
            seconds: the longest time without a byte of the answer; after it, a request raises ApiError.
        """
        return KubernetesAPI(self._transport, seconds, self._answered)

    def noting(self, answered: Callable[[], None]) -> KubernetesAPI:
        """Returns a client of the same API server that calls a function after each answer and each failed request.

        By the calls, a probe sees that a loop which waits for a slow API server still works.

        Args:
            answered: the function, which is called in the thread of the request.
        """
        return KubernetesAPI(self._transport, self._answer_seconds, answered)

    def get(
        self,
        path: str,
        query: Mapping[str, str | int] | None = None,
        *,
        most_bytes: int | None = None,
        decode: Decode = json.loads,
    ) -> Json:
        """Returns an object or a list of objects from the API server.

        Args:
            path: the path of the object or the collection.
            query: the parameters of the query; None for none.
            most_bytes: the longest answer that is read, in bytes; None for no limit.
            decode: parses the answer's bytes, or the part of them that the caller needs.

        Raises:
            TooLargeError: the answer is longer than `most_bytes`.
            ApiError: the server answered with an error or no JSON object, or not in time, or could not be reached.
        """
        response = self._send("GET", path, query, None, "application/json", self._answer_seconds)
        return _decode(_read_whole(response, most_bytes), decode)

    def create(self, path: str, body: Json, query: Mapping[str, str | int] | None = None) -> Json:
        """Posts an object into a collection or a subresource; returns the object as the API server stored it.

        Args:
            path: the path of the collection or the subresource.
            body: the object.
            query: the parameters of the query; None for none.

        Raises:
            ApiError: the server answered with an error or no JSON object, or not in time, or could not be reached.
        """
        return self.request("POST", path, body=body, query=query)

    def replace(self, path: str, body: Json) -> Json:
        """Replaces an object; returns the object as the API server stored it.

        Args:
            path: the path of the object.
            body: the new object. Its resourceVersion guards against a lost update.

        Raises:
            ApiError: the server answered with an error or no JSON object, or not in time, or could not be reached.
        """
        return self.request("PUT", path, body=body)

    def patch(
        self, path: str, body: Any, content_type: str = MERGE_PATCH, query: Mapping[str, str | int] | None = None
    ) -> Json:
        """Patches an object; returns the object as the API server stored it.

        Args:
            path: the path of the object, or of a subresource such as its status.
            body: the patch; of a JSON Patch, the list of operations.
            content_type: the kind of patch, such as MERGE_PATCH or JSON_PATCH.
            query: the parameters of the query; None for none.

        Raises:
            ApiError: the server answered with an error or no JSON object, or not in time, or could not be reached.
        """
        return self.request("PATCH", path, body=body, content_type=content_type, query=query)

    def delete(self, path: str, body: Json | None = None) -> Json:
        """Deletes an object; returns the API server's answer.

        Args:
            path: the path of the object.
            body: DeleteOptions; None for the defaults.

        Raises:
            ApiError: the server answered with an error or no JSON object, or not in time, or could not be reached.
        """
        return self.request("DELETE", path, body=body)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str | int] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """Sends one request to the API server; returns the whole answer as JSON.

        Args:
            method: the HTTP method, such as `POST`.
            path: the path in the API, without a query.
            body: the body, which is sent as JSON; None for no body.
            query: the parameters of the query; None for none.
            content_type: the value of the header Content-Type.

        Raises:
            ApiError: the server answered with an error or no JSON object, or not in time, or could not be reached.
        """
        response = self._send(method, path, query, body, content_type, self._answer_seconds)
        return _decode(_read_whole(response, None), json.loads)

    def stream(
        self, path: str, query: Mapping[str, str | int], idle_seconds: float, decode: Decode = json.loads
    ) -> Iterator[Json]:
        """Yields the events of a watch, each with `type` and `object`, until the API server ends the watch.

        Args:
            path: the path of the collection to watch.
            query: the watch's parameters; `watch` is added.
            idle_seconds: the time without a byte after which the connection counts as dead.
            decode: parses one event from JSON.

        Raises:
            ApiError: the watch was refused or interrupted, or an event is no JSON object.
        """
        response = self._send("GET", path, {**query, "watch": "true"}, None, "application/json", idle_seconds)
        buffered = b""
        try:
            for chunk in response.stream(65536, decode_content=True):
                *lines, buffered = (buffered + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield _decode(line, decode)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, "Unreachable", self._silence(error)) from error
        finally:
            response.close()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None,
        body: Any,
        content_type: str,
        read_seconds: float,
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self._configuration.host}{path}"
        if query:
            url = f"{url}?{urlencode(query)}"
        headers = {"Accept": "application/json, */*", "User-Agent": "fairgpu"}
        authorization = self._authorization()
        if authorization:
            headers["Authorization"] = authorization
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            # The pool's `request` also copies headers and reads unused parameters, which takes a tenth of the time.
            response = self._pool.urlopen(
                method,
                url,
                headers=headers,
                body=None if body is None else json.dumps(body).encode(),
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_SECONDS, read=read_seconds),
                retries=urllib3.Retry(total=0, redirect=0),
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            reason = UNANSWERED if _was_sent(error) else "Unreachable"
            raise ApiError(0, reason, self._silence(error)) from error
        finally:
            self._answered()
        if response.status >= 400:
            raise _refusal(response)
        return response

    def _authorization(self) -> str:
        """Returns the value of the header Authorization, at most TOKEN_SECONDS old; empty without a token."""
        value, asked_at = self._token
        now = time.monotonic()
        if now - asked_at >= TOKEN_SECONDS:
            bearer = self._configuration.auth_settings().get("BearerToken") or {}
            value = str(bearer.get("value") or "")
            self._token = value, now
        return value

    def _silence(self, error: Exception) -> str:
        """Returns the message that this API server does not answer, with the server's address and the cause.

        Args:
            error: the error that ended the request or the watch.
        """
        return f"the API server at {self._configuration.host} does not answer: {cause_of(error)}"


def cause_of(error: Exception) -> str:
    """Returns why a request of urllib3 failed, without the names of urllib3's objects in front of the cause."""
    inner: object = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else error
    return _OBJECT.sub("", str(inner))


def _read_whole(response: urllib3.BaseHTTPResponse, most_bytes: int | None) -> bytes:
    try:
        data: bytes = response.read(None if most_bytes is None else most_bytes + 1)
        if most_bytes is not None and len(data) > most_bytes:
            response.close()
            raise TooLargeError(most_bytes)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiError(0, UNANSWERED, str(error)) from error
    finally:
        response.release_conn()
    return data


def _was_sent(error: Exception) -> bool:
    """Whether the API server may have received a request, and carried it out, before the request failed.

    True if the answer took too long, or if the connection was closed before an answer: urllib3 then raises
    ProtocolError. False for any other error, such as a refused connection.

    Args:
        error: the error of urllib3 with which the request failed.
    """
    cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else error
    return isinstance(cause, urllib3.exceptions.ReadTimeoutError | urllib3.exceptions.ProtocolError)


def _refusal(response: urllib3.BaseHTTPResponse) -> ApiError:
    try:
        document = json.loads(response.read())
    except (ValueError, urllib3.exceptions.HTTPError, OSError):
        document = {}
    finally:
        response.release_conn()
    document = document if isinstance(document, dict) else {}
    reason = str(document.get("reason") or response.reason or "Error")
    return ApiError(response.status, reason, str(document.get("message") or "no message"))


def _decode(data: bytes, decode: Decode) -> Json:
    try:
        document = decode(data)
    except ValueError as error:
        raise ApiError(0, "NotJSON", f"the API server's answer is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise ApiError(0, "NotJSON", "the API server's answer is no JSON object")
    return document
