"""Signs tokens as an API server does, for tests and benchmarks: pods' projected tokens and people's."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from fairgpu import names
from timekeeper.auth.folder import ISSUER


class TokenSigner:
    """A private key, with the issuer whose tokens it signs."""

    def __init__(self, key_id: str = "key-1", algorithm: str = "RS256", issuer: str = ISSUER) -> None:
        self.key_id = key_id
        self.algorithm = algorithm
        self.issuer = issuer
        self.private_key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
        if algorithm.startswith("ES"):
            self.private_key = ec.generate_private_key(ec.SECP256R1())
        else:
            self.private_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def public_key(self) -> dict[str, Any]:
        """Returns the public key as a member of a JSON Web Key Set."""
        to_jwk = ECAlgorithm.to_jwk if self.algorithm.startswith("ES") else RSAAlgorithm.to_jwk
        jwk: dict[str, Any] = json.loads(to_jwk(self.private_key.public_key()))  # type: ignore[arg-type]
        jwk.pop("key_ops", None)
        return {**jwk, "kid": self.key_id, "use": "sig", "alg": self.algorithm}

    def key_set(self) -> dict[str, Any]:
        return {"keys": [self.public_key()]}

    def claims(self, subject: str, **changes: Any) -> dict[str, Any]:
        """Returns the claims of a valid token of one day; a change to None drops a claim."""
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": [names.TOKEN_AUDIENCE],
            "sub": subject,
            "iat": now,
            "nbf": now,
            "exp": now + 86_400,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def sign(self, claims: dict[str, Any], **headers: Any) -> str:
        return jwt.encode(claims, self.private_key, algorithm=self.algorithm, headers={"kid": self.key_id, **headers})

    def person(self, subject: str, **changes: Any) -> str:
        """Returns a token for a person or a service."""
        return self.sign(self.claims(subject, **changes))

    def pod(self, namespace: str, name: str, uid: str, **changes: Any) -> str:
        """Returns a token as the kubelet projects it into a pod."""
        bound = {
            "namespace": namespace,
            "pod": {"name": name, "uid": uid},
            "serviceaccount": {"name": "default", "uid": "5e0d3f2b-0000-4000-8000-000000000001"},
        }
        claims = {"kubernetes.io": bound, **changes}
        return self.sign(self.claims(f"system:serviceaccount:{namespace}:default", **claims))
