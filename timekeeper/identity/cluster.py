"""Identity by the API server: TokenReview, SubjectAccessReview and its published keys.

https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/
https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/subject-access-review-v1/
"""

from __future__ import annotations

from typing import Any

import jwt
from jwt.exceptions import PyJWTError

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from timekeeper.identity.callers import Action, Caller
from timekeeper.identity.forgery import is_forged
from timekeeper.identity.key_set import Issuer, KeySet
from timekeeper.identity.refusals import IdentityUnavailableError, UnauthenticatedError

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - the path of a collection, no secret
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/openid/v1/jwks"


class ClusterAuthority:
    """Asks the API server on each call."""

    def __init__(self, api: KubernetesAPI, keys: KeySet, *, own_audience_alone: bool = False) -> None:
        """Says whom to ask, and what tokens to take.

        Args:
            api: the API server.
            keys: its own, with which its forged tokens are told without asking it.
            own_audience_alone: whether a token that is good for the API server, too, is refused.
        """
        self._api = api
        self._keys = keys
        self._own_audience_alone = own_audience_alone

    def authenticate(self, token: str) -> Caller:
        """Whose token it is: one made for the timekeeper, or, where these are taken, for the API server itself.

        Raises:
            UnauthenticatedError: the API server does not know the token.
            IdentityUnavailableError: the API server cannot be asked.
        """
        if is_forged(token, self._keys):
            raise UnauthenticatedError("the token is not valid: it is forged or expired")
        spec: Json = {"token": token}
        if names.TOKEN_AUDIENCE in _stated_audiences(token):
            spec["audiences"] = [names.TOKEN_AUDIENCE]
        elif self._own_audience_alone:
            raise UnauthenticatedError(
                f"the token is not of the audience {names.TOKEN_AUDIENCE}, the only one that is taken here: make one "
                f"with kubectl create token ACCOUNT --audience {names.TOKEN_AUDIENCE}"
            )
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = self._review(TOKEN_REVIEWS, review)
        audiences = spec.get("audiences")
        if not status.get("authenticated") or (audiences and status.get("audiences") != audiences):
            raise UnauthenticatedError(
                "the API server does not accept this token: it is forged, expired, or made for somebody else"
            )
        user = status.get("user") or {}
        return Caller(
            name=str(user.get("username", "")),
            uid=str(user.get("uid", "")),
            groups=tuple(user.get("groups") or ()),
            extra=tuple(sorted((key, tuple(values)) for key, values in (user.get("extra") or {}).items())),
        )

    def permits(self, caller: Caller, action: Action) -> bool:
        """Whether the API server's authorizers allow the caller this.

        Raises:
            IdentityUnavailableError: the API server cannot be asked.
        """
        attributes = {"group": names.DOMAIN, "verb": action.verb, "resource": action.resource}
        attributes |= {"namespace": action.namespace} if action.namespace else {}
        attributes |= {"name": action.name} if action.name else {}
        spec: Json = {"user": caller.name, "groups": list(caller.groups), "resourceAttributes": attributes}
        spec |= {"uid": caller.uid} if caller.uid else {}
        spec |= {"extra": {key: list(values) for key, values in caller.extra}} if caller.extra else {}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return bool(self._review(ACCESS_REVIEWS, review).get("allowed"))

    def _review(self, path: str, review: Json) -> Json:
        try:
            status: Any = self._api.create(path, review).get("status")
        except ApiError as error:
            raise IdentityUnavailableError(f"the API server could not be asked who is calling: {error}") from error
        return status if isinstance(status, dict) else {}


def fetch_issuer(api: KubernetesAPI) -> Issuer:
    """The API server as an issuer of tokens.

    Raises:
        ApiError: it cannot be asked.
    """
    return Issuer(name=str(api.get(DISCOVERY).get("issuer", "")), key_set=api.get(KEYS))


def _stated_audiences(token: str) -> list[str]:
    """What a token says of its audience, not verified: it only chooses which question the API server is asked."""
    try:
        stated = jwt.decode(token, options={"verify_signature": False}).get("aud")
    except PyJWTError:
        return []
    listed = stated if isinstance(stated, list) else [stated]
    return [item for item in listed if isinstance(item, str)]
