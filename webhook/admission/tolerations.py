"""Adds tolerations to GPU pods, for the taints that keep other pods away from GPU nodes.

The scheduler applies taints to GPU pods as to every pod. The API server's own admission plugin for this,
ExtendedResourceToleration, is off by default and tolerates the name of the resource alone
(https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration).
"""

from __future__ import annotations

from typing import Any

from webhook.admission.json_patch import Operation, add
from webhook.settings import Toleration


def tolerate(spec: dict[str, Any], wanted: tuple[Toleration, ...]) -> list[Operation]:
    """Returns the operations that add each wanted toleration that the pod does not have."""
    given = spec.get("tolerations")
    written = [each.written() for each in wanted]
    if not isinstance(given, list):
        return [add("/spec/tolerations", written)] if written else []
    return [add("/spec/tolerations/-", each) for each in written if each not in given]
