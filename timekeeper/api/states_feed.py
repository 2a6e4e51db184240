"""The route of namespaces' states, and a worker's copy of the states, for any number of clients that wait for changes.

An answer is serialised once for all clients with the same cursor. A client that waits costs a task and no thread.
Everything runs in the event loop of one worker, but for the checks of callers' rights, which run in threads.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs

import orjson

from fairgpu.serving.messages import Request, Response
from timekeeper.api.metrics import Measures
from timekeeper.api.paging import refuse_unknown
from timekeeper.api.problems import ProblemError, invalid
from timekeeper.auth.access_control import AccessControl, Action, bearer_token, require
from timekeeper.ledger.reading import Changes, Cursor

LIST_BUDGETS = Action("list", "gpubudgets")
MAX_WAIT_SECONDS = 60.0
MAX_CURSOR_LENGTH = 80
CATCH_UP_SECONDS = 3.0
"""The most seconds that a request waits until this worker has read the states up to the cursor, which another worker
gave.
"""
MAX_CACHED_DOCUMENTS = 64


class CursorError(ValueError):
    """A text is no cursor of the states of namespaces."""


def parse_cursor(text: str) -> Cursor:
    """Parses a cursor of the states of namespaces: a store id, a dot and a version.

    Raises:
        CursorError: the text is not a cursor.
    """
    store_id, dot, version = text.rpartition(".")
    if not (dot and store_id and version.isascii() and version.isdigit() and len(text) <= MAX_CURSOR_LENGTH):
        raise CursorError("a cursor from an earlier answer, STORE_ID.VERSION")
    return Cursor(store_id, int(version))


class StatesFeed:
    """A worker's copy of the states of namespaces; it answers a client at once, or after the next change."""

    def __init__(self) -> None:
        self._cursor: Cursor | None = None
        self._states: dict[str, tuple[int, bytes]] = {}
        """The version in which each namespace's state changed last, and the state as JSON; keyed by namespace, in order
        of version.
        """
        self._tail = b""
        self._documents: dict[int, bytes] = {}
        """The answers of the present version, keyed by the version from which they start; -1 for the answer with all
        states.
        """
        self._changed = asyncio.Event()
        self._ending = False

    @property
    def cursor(self) -> Cursor | None:
        """The cursor of the states that this worker has read; None before the first read."""
        return self._cursor

    def apply(self, changes: Changes) -> None:
        """Applies changed states from the store to the worker's copy, and answers the clients that wait.

        If the changes are full, or of another store than the copy, they replace the copy.
        """
        if changes.full or self._cursor is None or changes.cursor.store_id != self._cursor.store_id:
            self._states = {}
        for namespace, state in changes.states:
            self._states.pop(namespace, None)
            self._states[namespace] = (changes.cursor.version, state)
        self._cursor = changes.cursor
        prices, default = orjson.dumps(dict(changes.prices)), orjson.dumps(changes.default)
        charge = orjson.dumps(dict(changes.charge))
        unused = b',"unused":' + changes.unused if changes.unused else b""
        self._tail = b'],"default":' + default + unused + b',"prices":' + prices + b',"charge":' + charge + b"}"
        self._documents = {}
        self._wake()

    def end(self) -> None:
        """Ends the waiting of all clients: they are answered now, without a change, since the worker ends."""
        self._ending = True
        self._wake()

    async def answer(self, since: Cursor | None, wait_seconds: float) -> bytes | None:
        """Returns the JSON document of the states that changed since a cursor.

        The answer comes at once if a state has changed since the cursor, else after the next change or the longest
        wait. If the cursor is later than the states that this worker has read, the worker first waits to read them: for
        `wait_seconds`, but at least 1 s and at most CATCH_UP_SECONDS. If it has not read them by then, it returns all
        states.

        Args:
            since: the cursor; None, or a cursor of another store, for all states.
            wait_seconds: the longest wait for a change.

        Returns:
            The document; None if this worker knows no states yet.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        catch_up = loop.time() + min(CATCH_UP_SECONDS, max(wait_seconds, 1.0))
        while not self._ending:
            until = catch_up if self._is_ahead(since) else deadline
            if self._has_changes(since) or loop.time() >= until:
                break
            await self._wait(until)
        return self._document(since) if self._cursor is not None else None

    def _has_changes(self, since: Cursor | None) -> bool:
        if self._cursor is None:
            return False
        return since is None or since.store_id != self._cursor.store_id or since.version < self._cursor.version

    def _is_ahead(self, since: Cursor | None) -> bool:
        present = self._cursor
        return (
            present is not None
            and since is not None
            and since.store_id == present.store_id
            and since.version > present.version
        )

    async def _wait(self, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _document(self, since: Cursor | None) -> bytes:
        """Returns the JSON document with the states that changed since a cursor.

        The document has all states if the cursor is None, is of another store id, or is later than the states that this
        worker has read.
        """
        assert self._cursor is not None  # noqa: S101 - the caller has looked
        whole = since is None or since.store_id != self._cursor.store_id or since.version > self._cursor.version
        start = -1 if whole or since is None else since.version
        document = self._documents.get(start)
        if document is None:
            document = self._serialise(start)
            if len(self._documents) < MAX_CACHED_DOCUMENTS:
                self._documents[start] = document
        return document

    def _serialise(self, start: int) -> bytes:
        chosen: list[bytes] = []
        for version, state in reversed(self._states.values()):
            if version <= start:
                break
            chosen.append(state)
        full = b"true" if start < 0 else b"false"
        head = b'{"cursor":"' + str(self._cursor).encode() + b'","full":' + full + b',"states":['
        return head + b",".join(chosen) + self._tail


class StatesRoute:
    """Answers `GET /v1/states?since=&wait=` with the states that changed since a cursor, as soon as a state changes."""

    def __init__(
        self, access: AccessControl, feed: StatesFeed, measures: Measures, threads: ThreadPoolExecutor
    ) -> None:
        """Makes the route; callers are authenticated in `threads`, since the API server may have to answer."""
        self._access = access
        self._threads = threads
        self._feed = feed
        self._waiting = measures.waiting

    async def __call__(self, request: Request) -> Response:
        """Answers a request for states: at once, after the next change, or at the end of the wait that it asks for.

        If it cannot answer, it raises an error, from which `guarded` makes the answer.
        """
        token = bearer_token(request.text_header(b"authorization"))
        loop, origin = asyncio.get_running_loop(), (request.scope.get("client") or ("",))[0]
        await loop.run_in_executor(self._threads, require, self._access, token, LIST_BUDGETS, origin)
        query = parse_qs(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        refuse_unknown(query, ("since", "wait"))
        since, wait = _cursor(query.get("since", [""])[-1]), _wait(query.get("wait", ["0"])[-1])
        with self._waiting.track_inprogress():
            body = await self._feed.answer(since, wait)
        if body is None:
            raise ProblemError(503, "unavailable", "no states are known yet; try again", headers={"Retry-After": "1"})
        return Response(200, body, headers=((b"cache-control", b"no-store"),))


def _cursor(text: str) -> Cursor | None:
    if not text:
        return None
    try:
        return parse_cursor(text)
    except CursorError as error:
        raise invalid("since", text, str(error)) from error


def _wait(text: str) -> float:
    """Returns the seconds that the parameter `wait` states, at most MAX_WAIT_SECONDS.

    Raises:
        ProblemError: the text is no number from 0 up.
    """
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and len(text) <= 16):
        raise invalid("wait", text, f"seconds from 0; more than {MAX_WAIT_SECONDS:g} count as {MAX_WAIT_SECONDS:g}")
    return min(float(text), MAX_WAIT_SECONDS)
