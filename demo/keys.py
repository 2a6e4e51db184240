"""Signs bearer tokens as an API server does: the tokens that kubelets project into pods, and the tokens of people."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from fairgpu import names

ISSUER = "https://standalone.fairgpu.io"
KEY_ID = "demo"
ALGORITHM = "ES256"
LIFE_SECONDS = 600


class TokenSigner:
    """A signer of bearer tokens, with a private key that is made for this demonstration and never stored."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def key_set(self) -> dict[str, Any]:
        """Returns the public key of the signer, as a JSON Web Key Set (RFC 7517)."""
        key: dict[str, Any] = json.loads(ECAlgorithm.to_jwk(self._key.public_key()))
        return {"keys": [{**key, "kid": KEY_ID, "use": "sig", "alg": ALGORITHM}]}

    def person(self, subject: str) -> str:
        """Returns a bearer token of a person or a service.

        Args:
            subject: the user name, such as `ada`.
        """
        return self._sign({"sub": subject})

    def pod(self, namespace: str, name: str, uid: str) -> str:
        """Returns a bearer token that is bound to a pod, as the kubelet projects it."""
        bound = {"namespace": namespace, "pod": {"name": name, "uid": uid}, "serviceaccount": {"name": "default"}}
        return self._sign({"sub": f"system:serviceaccount:{namespace}:default", "kubernetes.io": bound})

    def _sign(self, claims: dict[str, Any]) -> str:
        now = int(time.time())
        times = {"iat": now, "nbf": now, "exp": now + LIFE_SECONDS}
        whole = {"iss": ISSUER, "aud": [names.TOKEN_AUDIENCE], **times, **claims}
        return jwt.encode(whole, self._key, algorithm=ALGORITHM, headers={"kid": KEY_ID})
