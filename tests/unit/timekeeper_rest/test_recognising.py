"""A slow issuer holds up no caller whose token can be verified without it."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field

import pytest

from tests.support.tokens import TokenSigner
from tests.support.waiting import LIMIT_S
from timekeeper.auth.access_control import UnauthenticatedError
from timekeeper.auth.signed_tokens import MAX_AGE_SECONDS, Issuer, KeySet, PodAuthenticator, PodTokens

SIGNER, NEW, STRANGER = (TokenSigner(key, "ES256") for key in ("key-1", "key-2", "key-9"))


@dataclass
class SlowIssuer:
    """Answers once it is let; counts how often it is asked."""

    answers: threading.Event = field(default_factory=threading.Event)
    signers: tuple[TokenSigner, ...] = (SIGNER,)
    asked: int = 0
    clock: float = 0.0

    def fetch(self) -> Issuer:
        self.asked += 1
        assert self.answers.wait(LIMIT_S)
        return Issuer(SIGNER.issuer, {"keys": [signer.public_key() for signer in self.signers]})

    def recognizer(self) -> PodAuthenticator:
        """With the keys as they are; from then on they are old, and the issuer is slow."""
        self.answers.set()
        keys = KeySet(self.fetch, lambda: self.clock)
        keys.refresh()
        self.answers.clear()
        self.clock += MAX_AGE_SECONDS
        return PodAuthenticator(PodTokens(keys, time.time))


def bearer(signer: TokenSigner, uid: str) -> str:
    return f"Bearer {signer.pod('team-a', uid, uid)}"


def test_a_token_whose_key_is_known_is_verified_though_the_issuer_does_not_answer() -> None:
    issuer = SlowIssuer()
    recognise = issuer.recognizer()

    async def ask() -> list[str]:
        found = await asyncio.gather(*(recognise(bearer(SIGNER, f"uid-{number}")) for number in range(50)))
        issuer.answers.set()
        return [pod.uid for pod in found]

    assert asyncio.run(ask()) == [f"uid-{number}" for number in range(50)]
    recognise.close()
    assert issuer.asked == 2


def test_tokens_of_a_key_that_is_not_known_wait_for_one_fetch_among_them() -> None:
    issuer = SlowIssuer()
    recognise = issuer.recognizer()
    issuer.signers = (SIGNER, NEW)

    async def ask() -> list[str]:
        waiting = [asyncio.ensure_future(recognise(bearer(NEW, f"uid-{number}"))) for number in range(50)]
        known = await recognise(bearer(SIGNER, "known"))
        assert not any(found.done() for found in waiting)
        issuer.answers.set()
        return [known.uid, *(pod.uid for pod in await asyncio.gather(*waiting))]

    assert len(asyncio.run(ask())) == 51
    recognise.close()
    assert issuer.asked == 2


def test_a_token_of_no_key_of_the_issuers_is_refused_once_it_has_answered() -> None:
    issuer = SlowIssuer()
    recognise = issuer.recognizer()
    issuer.answers.set()
    with pytest.raises(UnauthenticatedError, match="not signed with a key"):
        asyncio.run(one(recognise, bearer(STRANGER, "uid")))
    recognise.close()


async def one(recognise: PodAuthenticator, authorization: str) -> str:
    return (await recognise(authorization)).uid
