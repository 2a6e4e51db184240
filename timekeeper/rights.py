"""The rights and features that the modes need of a cluster and of the admin who installs them, for `fairgpu doctor`.

The API server answers access reviews and stores none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.json_values import mapping, mappings

FLOOR: Final = (1, 32)
"""The first Kubernetes whose policies have everything that the guards of account and share use (docs/install.md)."""
_REVIEWS: Final = "/apis/authorization.k8s.io/v1"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_VERSION: Final = re.compile(r"v?([0-9]+)\.([0-9]+)")


class Needed(NamedTuple):
    """A right to create objects, in FairGPU's namespace or in the whole cluster.

    Attributes:
        group: the API group; empty for the core group.
        resource: the name of the collection.
        namespace: the namespace; empty for the whole cluster.
    """

    group: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"create {self.resource}{'.' if self.group else ''}{self.group}{where}"


_RBAC: Final = "rbac.authorization.k8s.io"
_POLICIES: Final = "admissionregistration.k8s.io"
FOR_LOOK: Final = (
    Needed("", "namespaces"),
    Needed(_RBAC, "clusterroles"),
    Needed(_RBAC, "clusterrolebindings"),
    Needed("apps", "deployments", names.SYSTEM_NAMESPACE),
    Needed("apps", "statefulsets", names.SYSTEM_NAMESPACE),
)
"""The objects of the overlay of look, as far as the rights to create them differ."""
FOR_ACCOUNT: Final = (
    Needed("apiextensions.k8s.io", "customresourcedefinitions"),
    Needed("scheduling.k8s.io", "priorityclasses"),
    Needed(_POLICIES, "validatingadmissionpolicies"),
    Needed(_POLICIES, "validatingadmissionpolicybindings"),
    Needed(_POLICIES, "mutatingwebhookconfigurations"),
    Needed(_POLICIES, "validatingwebhookconfigurations"),
)
"""The objects that the overlays of account and share create beside those of look."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The rights and features that a cluster lacks for an installation of FairGPU.

    Attributes:
        rights_for_look: the rights that the caller lacks to install the mode look.
        rights_for_account: the rights that the caller lacks besides, to install the mode account or share.
        features: the features that the cluster lacks for the modes account and share, or a volume for Redis.
    """

    rights_for_look: tuple[str, ...] = ()
    rights_for_account: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


def read_missing(api: KubernetesAPI, version: str, *, installed: bool = False) -> Missing:
    """Asks the API server which rights and features are missing for an installation of FairGPU.

    Args:
        installed: whether FairGPU is installed, so that its Redis needs no new volume.

    Raises:
        ApiError: the API server does not answer.
    """
    features = (*_features(api, version), *(() if installed else _volumes(api)))
    return Missing(_lacked(api, FOR_LOOK), _lacked(api, FOR_ACCOUNT), features)


def may_write_gpu_pods(api: KubernetesAPI, account: str) -> bool:
    """Returns whether a service account may write the annotations and the status by which GPU pods are charged.

    Where the API server gives no verdict, the result is False.

    Args:
        account: the service account as NAMESPACE:NAME.

    Raises:
        ApiError: the API server does not answer.
    """
    namespace, _, name = account.partition(":")
    spec = {
        "user": f"system:serviceaccount:{namespace}:{name}",
        "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
        "resourceAttributes": {"group": names.DOMAIN, "resource": "podstatuses", "verb": "update"},
    }
    return _review(api, "SubjectAccessReview", spec) is True


def as_lines(missing: Missing) -> list[str]:
    """Returns the missing rights and features as lines of text; empty where nothing is missing."""
    lines = []
    for mode, rights in (("look", missing.rights_for_look), ("account or share", missing.rights_for_account)):
        if rights:
            lines += ["", f"To install {mode}, your account lacks the right to {', '.join(rights)}."]
    for feature in missing.features:
        lines += ["", f"{feature}."]
    return lines


def as_document(missing: Missing) -> dict[str, Any]:
    """Returns the missing rights and features as a JSON object."""
    return {
        "rightsForLook": missing.rights_for_look,
        "rightsForAccount": missing.rights_for_account,
        "features": missing.features,
    }


def _lacked(api: KubernetesAPI, needed: Iterable[Needed]) -> tuple[str, ...]:
    """Returns those rights that the API server says the caller lacks."""
    lacked = []
    for right in needed:
        attributes = {"group": right.group, "resource": right.resource, "namespace": right.namespace, "verb": "create"}
        if _review(api, "SelfSubjectAccessReview", {"resourceAttributes": attributes}) is False:
            lacked.append(str(right))
    return tuple(lacked)


def _review(api: KubernetesAPI, kind: str, spec: Mapping[str, Any]) -> bool | None:
    """Returns the API server's answer; None where it gives the caller none."""
    body: Json = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    try:
        status = mapping(api.create(f"{_REVIEWS}/{kind.lower()}s", body).get("status"))
    except ApiError as error:
        if error.status not in {403, 404}:
            raise
        return None
    return status.get("allowed") is True


def _volumes(api: KubernetesAPI) -> Iterable[str]:
    """Says that no StorageClass is the default; nothing where the API server does not show them."""
    try:
        classes = mappings(api.get("/apis/storage.k8s.io/v1/storageclasses").get("items"))
    except ApiError as error:
        if error.status not in {403, 404}:
            raise
        return
    if not any(
        mapping(mapping(one.get("metadata")).get("annotations")).get(_DEFAULT_CLASS) == "true" for one in classes
    ):
        yield "No StorageClass is the default: name one for Redis, or it waits for its volume (docs/install.md)"


def _features(api: KubernetesAPI, version: str) -> Iterable[str]:
    stated = _VERSION.match(version)
    if stated is not None and (int(stated[1]), int(stated[2])) < FLOOR:
        floor = ".".join(map(str, FLOOR))
        yield f"account and share need Kubernetes {floor} or newer, and this is {version}. look runs here"
        return
    try:
        api.get(f"/apis/{_POLICIES}/v1/validatingadmissionpolicies", {"limit": 1})
    except ApiError as error:
        if error.not_found:
            yield "account and share need ValidatingAdmissionPolicies, which this API server does not serve"
        elif error.status != 403:
            raise
