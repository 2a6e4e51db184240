"""Writes into a GPUGrant or a GPUCorrection who made it, where its author left that out."""

from __future__ import annotations

from typing import Final

from webhook.admission.json_patch import add
from webhook.admission.verdict import UNTOUCHED, Subject, Verdict

KINDS: Final = ("GPUGrant", "GPUCorrection")
LONGEST_NAME: Final = 256
"""The CRDs' maxLength of `spec.requestedBy`; the policy fairgpu-orders cuts names as this does."""


def sign(subject: Subject) -> Verdict:
    """The author's name in an order that names nobody. A name that is there is the policy's to judge."""
    spec = subject.item.get("spec")
    if not isinstance(spec, dict) or spec.get("requestedBy") or not subject.user:
        return UNTOUCHED
    return Verdict(operations=(add("/spec/requestedBy", subject.user[:LONGEST_NAME]),))
