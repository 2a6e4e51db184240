"""Whom a pod is put down to in showback: the person who made it, or the controller that a person made."""

from __future__ import annotations

import re
from typing import Any

from webhook.admission.verdict import Subject, mapping, objects

SYSTEM_PREFIX = "system:"
ACCOUNT_PREFIX = "system:serviceaccount:"
TEMPLATE_HASH = "pod-template-hash"

KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,252}")
"""Of owners the API server asks only that these be not empty; what goes on to bills must be safe in any of them."""


def creator(subject: Subject) -> str:
    """The user, or `Kind/name` of the pod's controller where a controller made it.

    An owner that a person names is not believed: it would put their pods down to somebody else. Nor is one that a
    service account of the pod's own namespace names, since whoever edits a namespace may act as its accounts.
    Controllers have theirs in kube-system or in an operator's own namespace.
    """
    own_account = subject.user.startswith(f"{ACCOUNT_PREFIX}{subject.namespace}:")
    if own_account or not subject.user.startswith(SYSTEM_PREFIX):
        return subject.user
    metadata = mapping(subject.item.get("metadata"))
    for _, owner in objects(metadata.get("ownerReferences")):
        kind, name = owner.get("kind"), owner.get("name")
        if owner.get("controller") is not True or not isinstance(kind, str) or not isinstance(name, str):
            continue
        if KIND.fullmatch(kind) and NAME.fullmatch(name):
            return _controller(kind, name, metadata)
    return subject.user


def _controller(kind: str, name: str, metadata: dict[str, Any]) -> str:
    """A Deployment names its ReplicaSets after itself and a hash, which it also puts on their pods as a label."""
    template_hash = mapping(metadata.get("labels")).get(TEMPLATE_HASH)
    if kind == "ReplicaSet" and isinstance(template_hash, str) and template_hash and name.endswith(f"-{template_hash}"):
        return f"Deployment/{name.removesuffix(f'-{template_hash}')}"
    return f"{kind}/{name}"
