"""Refuses forged and expired tokens of the cluster itself before the API server is asked about them.

A TokenReview is a request to the API server; whoever can reach the timekeeper could otherwise have it send as many as
they like.
"""

from __future__ import annotations

import jwt
from jwt.exceptions import PyJWTError

from timekeeper.identity.key_set import KeySet
from timekeeper.identity.pod_tokens import LEEWAY_SECONDS
from timekeeper.identity.refusals import IdentityUnavailableError


def is_forged(token: str, keys: KeySet) -> bool:
    """Whether a token says that this cluster signed it, and it did not, or not for now.

    Tokens of other issuers (OpenID Connect, static files) are for the API server to judge, and so are all while there
    are no keys. May fetch keys.
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
