"""Asks the API server who a token's bearer is (TokenReview) and what they may do (SubjectAccessReview).

Before that, forged and expired tokens of the cluster's own issuer are refused by their signature and expiry: otherwise
any client could cause any number of reviews.
"""

from __future__ import annotations

from typing import Any

import jwt
from jwt.exceptions import PyJWTError

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from timekeeper.auth.access_control import Action, Caller, IdentityUnavailableError, UnauthenticatedError
from timekeeper.auth.signed_tokens import LEEWAY_SECONDS, Issuer, KeySet


def is_forged(token: str, keys: KeySet) -> bool:
    """Returns whether a token names the cluster's issuer, but no key of the issuer signed it or it is not valid now.

    A token without an expiry is never valid. The issuer's keys are fetched first if that is due. The result is False
    for tokens of other issuers (OpenID Connect), for texts that are no JWT, and as long as no keys are known: the API
    server decides on such tokens.
    """
    try:
        header = jwt.get_unverified_header(token)
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except PyJWTError:
        return False
    key_id = header.get("kid")
    if keys.wants_refresh(str(key_id)):
        keys.refresh()
    if not keys.issuer or issuer != keys.issuer:
        return False
    try:
        key = keys.get(str(key_id))
        if key is None:
            return True
        jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp"], "verify_aud": False},
        )
    except IdentityUnavailableError:
        return False
    except PyJWTError:
        return True
    return False


TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - the path of a collection, no secret
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/openid/v1/jwks"


class ClusterReviewer:
    """Authenticates callers and decides their rights by asking the API server; it has no cache.

    At each call the API server is asked. Some tokens are refused without asking it: forged or expired ones of the
    cluster's own issuer, and those for another audience if `own_audience_alone` is set.
    """

    def __init__(self, api: KubernetesAPI, keys: KeySet, *, own_audience_alone: bool = False) -> None:
        """Makes a reviewer over an API server.

        Args:
            keys: the API server's keys, with which forged tokens are refused without a request.
            own_audience_alone: whether only tokens of the timekeeper's audience are accepted.
        """
        self._api = api
        self._keys = keys
        self._own_audience_alone = own_audience_alone

    def authenticate(self, token: str) -> Caller:
        """Returns the caller whom a token identifies.

        The token's audience must be the timekeeper. If `own_audience_alone` is False, a token for the API server is
        accepted, too.

        Raises:
            UnauthenticatedError: the token is forged or expired, is for another audience, or is not accepted by the API
                server.
            IdentityUnavailableError: the API server refuses the review, or does not answer.
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
        """Returns whether the API server allows the caller an action.

        Raises:
            IdentityUnavailableError: the API server refuses the review, or does not answer.
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
            raise IdentityUnavailableError(f"the API server did not review the caller: {error}") from error
        return status if isinstance(status, dict) else {}


def fetch_issuer(api: KubernetesAPI) -> Issuer:
    """Fetches the API server's name as an issuer of tokens, and its public keys.

    Raises:
        ApiError: the API server refuses, or does not answer.
    """
    return Issuer(name=str(api.get(DISCOVERY).get("issuer", "")), key_set=api.get(KEYS))


def _stated_audiences(token: str) -> list[str]:
    """Returns the audiences that a token states, unverified: they only choose the audience for which a review asks.

    The result is empty if the token states none, or is no JSON Web Token.
    """
    try:
        stated = jwt.decode(token, options={"verify_signature": False}).get("aud")
    except PyJWTError:
        return []
    listed = stated if isinstance(stated, list) else [stated]
    return [item for item in listed if isinstance(item, str)]
