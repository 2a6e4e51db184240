"""Access control by files of a folder, without an API server.

`jwks.json` has the public keys of tokens. `access.yaml` has people's rights as a list of rules; the namespace `*`
stands for every namespace and for the cluster scope:

    - {subject: alice, namespace: team-a, verbs: [get]}
    - {subject: admin, namespace: "*", verbs: [get, list, create]}

A rule allows its verbs on every resource. A person's token is a JWT of the audience fairgpu-timekeeper and the issuer
ISSUER; its `sub` is the subject.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import jwt
import yaml
from jwt.exceptions import PyJWTError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fairgpu import yaml_text
from timekeeper.auth.access_control import Action, Caller, IdentityUnavailableError, UnauthenticatedError
from timekeeper.auth.signed_tokens import Issuer, KeySet, verified_claims

ISSUER = "https://standalone.fairgpu.io"
EVERYWHERE = "*"


class Rule(BaseModel):
    """One rule of access.yaml: the verbs that the person `subject` may use in a namespace, or everywhere with `*`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    subject: Annotated[str, Field(min_length=1)]
    namespace: Annotated[str, Field(min_length=1)]
    verbs: Annotated[list[str], Field(min_length=1)]

    def permits(self, subject: str, action: Action) -> bool:
        """Returns whether the rule allows a person this action; the action's resource and name do not matter.

        Args:
            subject: the person, as in the token's `sub`.
        """
        where = self.namespace in (EVERYWHERE, action.namespace or EVERYWHERE)
        return self.subject == subject and where and action.verb in self.verbs


_RULES = TypeAdapter(list[Rule])


class FolderAccessControl:
    """Authenticates callers and decides their rights according to files of a folder, in place of an API server.

    Tokens are verified with the keys in jwks.json. Rights are the rules in access.yaml, which is read on each call.
    """

    def __init__(self, folder: Path, keys: KeySet) -> None:
        self._access = folder / "access.yaml"
        self._keys = keys

    def authenticate(self, token: str, _origin: str = "", /) -> Caller:
        """Returns the caller whom a token identifies.

        Raises:
            UnauthenticatedError: the token is not signed with a key of the folder, or not valid.
            IdentityUnavailableError: no keys could be read yet.
        """
        try:
            key_id = str(jwt.get_unverified_header(token).get("kid"))
        except PyJWTError as error:
            raise UnauthenticatedError("the token is no JWT") from error
        if self._keys.wants_refresh(key_id):
            self._keys.refresh()
        key = self._keys.get(key_id)
        if key is None:
            raise UnauthenticatedError("the token is not signed with a key of jwks.json")
        return Caller(name=str(verified_claims(token, key, self._keys.issuer)["sub"]))

    def permits(self, caller: Caller, action: Action) -> bool:
        """Returns whether a rule of access.yaml allows the caller this action.

        Raises:
            IdentityUnavailableError: the file is missing, unreadable or invalid.
        """
        return any(rule.permits(caller.name, action) for rule in read_rules(self._access))


def read_rules(file: Path) -> list[Rule]:
    """Returns the rules in a file access.yaml.

    Raises:
        IdentityUnavailableError: the file is missing, unreadable or invalid; the message names an invalid field.
    """
    try:
        return _RULES.validate_python(yaml_text.load(file.read_text(encoding="utf-8")) or [])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise IdentityUnavailableError(f"{file.name}: {where}: {first['msg']}") from error
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise IdentityUnavailableError(f"{file.name} cannot be read: {error}") from error


def read_issuer(folder: Path) -> Issuer:
    """Returns the issuer of tokens whose keys are in the folder's file jwks.json.

    Raises:
        OSError: jwks.json cannot be read.
        ValueError: jwks.json is not JSON.
        IdentityUnavailableError: jwks.json is not a JSON object.
    """
    document = json.loads((folder / "jwks.json").read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise IdentityUnavailableError("jwks.json is no JSON object")
    return Issuer(name=ISSUER, key_set=document)
