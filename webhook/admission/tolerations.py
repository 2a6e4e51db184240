"""Tolerations of GPU pods: the taints by which pools of GPU nodes keep other pods away do not keep these.

The scheduler goes by taints as it does for every pod. The API server's own admission plugin for this,
ExtendedResourceToleration, is off by default and tolerates the name of the resource alone
(https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration).
"""

from __future__ import annotations

from typing import Any

from webhook.admission.json_patch import Operation, add
from webhook.settings import Toleration


def tolerate(spec: dict[str, Any], wanted: tuple[Toleration, ...]) -> list[Operation]:
    """The operations that add each toleration that the pod does not have as it is written."""
    given = spec.get("tolerations")
    if not isinstance(given, list):
        return [add("/spec/tolerations", [each.written() for each in wanted])] if wanted else []
    return [add("/spec/tolerations/-", written) for each in wanted if (written := each.written()) not in given]
