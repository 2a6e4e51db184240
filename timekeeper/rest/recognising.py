"""Recognises pods on the event loop. Only keys that are to be fetched cost a request to the issuer.

That happens in a thread of its own, once for all who wait for it: neither a slow API server nor the access reviews that
it is asked for meanwhile hold up the verification of tokens whose keys are known.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from timekeeper.identity.bearer import bearer_token
from timekeeper.identity.pod_tokens import PodIdentity, PodTokens

PATIENCE_SECONDS = 1.0
"""How long a token whose key is known waits to hear whether the issuer has withdrawn it."""


class Recognizer:
    """Asked in the event loop of one worker."""

    def __init__(self, tokens: PodTokens) -> None:
        self._tokens = tokens
        self._thread = ThreadPoolExecutor(1, "fetch-keys")
        self._fetching: asyncio.Future[None] | None = None

    async def __call__(self, authorization: str | None) -> PodIdentity:
        """The pod that asks.

        Raises:
            UnauthenticatedError: the token is nobody's.
            IdentityUnavailableError: there are no keys yet.
        """
        token = bearer_token(authorization)
        pod = self._tokens.known(token)
        if pod is None:
            if self._tokens.wants_keys(token):
                await self._fetch_keys(PATIENCE_SECONDS if self._tokens.has_key(token) else None)
            pod = self._tokens.verify(token)
        return pod

    def close(self) -> None:
        """Ends the thread; what it still waits for is given up."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _fetch_keys(self, seconds: float | None) -> None:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().run_in_executor(self._thread, self._tokens.fetch_keys)
        await asyncio.wait({self._fetching}, timeout=seconds)
