from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.tokens import TokenSigner
from timekeeper.auth.access_control import (
    CALLER_SECONDS,
    REFUSAL_SECONDS,
    VERDICT_SECONDS,
    Action,
    CachingAccessControl,
    Caller,
    ForbiddenError,
    IdentityUnavailableError,
    UnauthenticatedError,
    require,
)
from timekeeper.auth.folder import FolderAccessControl, read_issuer
from timekeeper.auth.signed_tokens import KeySet

READ_A = Action("get", "gpubudgets", "team-a")
READ_ALL = Action("list", "gpubudgets")
GRANT = Action("create", "gpugrants")

RULES = """
- {subject: alice, namespace: team-a, verbs: [get]}
- {subject: finance, namespace: "*", verbs: [get, list]}
- {subject: admin, namespace: "*", verbs: [get, list, create]}
"""


class Counting:
    """Knows one caller by the token `good`, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.allowed = True

    def authenticate(self, token: str) -> Caller:
        self.asked.append(token)
        if token != "good":
            raise UnauthenticatedError("unknown")
        return Caller("alice")

    def permits(self, caller: Caller, action: Action) -> bool:
        self.asked.append(f"{caller.name} {action}")
        return self.allowed


def test_answers_are_believed_for_a_short_while_and_then_asked_for_again() -> None:
    inner, now = Counting(), [0.0]
    access = CachingAccessControl(inner, lambda: now[0])
    for _ in range(3):
        require(access, "good", READ_A)
    assert inner.asked == ["good", "alice get gpubudgets.fairgpu.io in namespace 'team-a'"]
    now[0] = VERDICT_SECONDS
    inner.allowed = False
    with pytest.raises(ForbiddenError, match=r"'alice' may not get gpubudgets\.fairgpu\.io in namespace 'team-a'"):
        require(access, "good", READ_A)
    now[0] = CALLER_SECONDS
    access.authenticate("good")
    assert inner.asked.count("good") == 2


def test_a_verdict_for_one_namespace_says_nothing_of_another() -> None:
    inner = Counting()
    access = CachingAccessControl(inner, lambda: 0.0)
    require(access, "good", READ_A)
    inner.allowed = False
    for action in (Action("get", "gpubudgets", "team-b"), READ_ALL, GRANT):
        with pytest.raises(ForbiddenError):
            require(access, "good", action)


def test_a_refused_token_is_asked_about_again_after_a_moment() -> None:
    inner, now = Counting(), [0.0]
    access = CachingAccessControl(inner, lambda: now[0])
    for moment in (0.0, 1.0, REFUSAL_SECONDS):
        now[0] = moment
        with pytest.raises(UnauthenticatedError, match="unknown"):
            access.authenticate("bad")
    assert inner.asked == ["bad", "bad"]


@pytest.fixture
def signer() -> TokenSigner:
    return TokenSigner(algorithm="ES256")


@pytest.fixture
def folder(tmp_path: Path, signer: TokenSigner) -> FolderAccessControl:
    (tmp_path / "jwks.json").write_text(json.dumps(signer.key_set()))
    (tmp_path / "access.yaml").write_text(RULES)
    return FolderAccessControl(tmp_path, KeySet(lambda: read_issuer(tmp_path), time.monotonic))


@pytest.mark.parametrize(
    ("subject", "action", "allowed"),
    [
        ("alice", READ_A, True),
        ("alice", Action("get", "gpubudgets", "team-b"), False),
        ("alice", Action("get", "gpubudgets"), False),
        ("alice", GRANT, False),
        ("finance", READ_A, True),
        ("finance", READ_ALL, True),
        ("finance", GRANT, False),
        ("admin", GRANT, True),
        ("nobody", READ_A, False),
    ],
)
def test_access_yaml_decides_in_standalone_mode(
    folder: FolderAccessControl, signer: TokenSigner, subject: str, action: Action, *, allowed: bool
) -> None:
    caller = folder.authenticate(signer.person(subject))
    assert caller == Caller(subject)
    assert folder.permits(caller, action) is allowed


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- {subject: alice}", "0.namespace"),
        ("alice: [get]", "list"),
        ("- {subject: a, namespace: b, verbs: get}", "0.verbs"),
        ("[", "cannot be read"),
        ("- {subject: a, namespace: 2026-02-30}", "cannot be read"),
        ("[" * 500, "cannot be read"),
    ],
)
def test_an_access_yaml_that_cannot_be_understood_allows_nothing_and_says_why(
    folder: FolderAccessControl, tmp_path: Path, text: str, named: str
) -> None:
    (tmp_path / "access.yaml").write_text(text)
    with pytest.raises(IdentityUnavailableError, match=named):
        folder.permits(Caller("alice"), READ_A)


def test_a_stranger_is_nobody_in_standalone_mode(folder: FolderAccessControl) -> None:
    for token in (TokenSigner(algorithm="ES256").person("admin"), "nonsense"):
        with pytest.raises(UnauthenticatedError):
            folder.authenticate(token)
