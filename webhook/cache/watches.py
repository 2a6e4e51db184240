"""The watches on the API server: the permissions of namespaces, priority classes, and claims that ask for no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import structlog

from fairgpu import names
from fairgpu.cluster import resource_claims
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.cluster.reflector import Collection, reflect
from fairgpu.json_values import mapping, mappings
from fairgpu.keeping import Wait
from fairgpu.permissions import Permission, parse_permissions, unknown_permissions
from webhook.admission.knowledge import OtherClaim, read_priority_class
from webhook.cache.admission_cache import AdmissionCache
from webhook.settings import Priorities

_log = structlog.get_logger(__name__)

NAMESPACES = Collection("/api/v1/namespaces", {})
CLAIMS = "resourceclaims"
CLAIM_TEMPLATES = "resourceclaimtemplates"
ASK_AGAIN_SECONDS = 30.0
"""The time after which an API server without Dynamic Resource Allocation is asked for it again."""
PRIORITY_CLASSES = Collection("/apis/scheduling.k8s.io/v1/priorityclasses", {})


class _Logged:
    """The base of the views, which logs failed requests to the API server."""

    def confirmed(self) -> None:
        """Does nothing: no decision on a review depends on how long ago the objects were seen."""

    def failed(self, error: ApiError) -> None:
        _log.warning("watch failed", view=type(self).__name__, error=str(error))


class NamespacesView(_Logged):
    """A view of Namespaces, which stores in the cache the permissions that annotations `fairgpu.io/allow` grant."""

    def __init__(self, cache: AdmissionCache) -> None:
        self._cache = cache
        self._permissions: dict[str, frozenset[Permission]] = {}
        self._noted: set[tuple[str, str]] = set()
        """Each namespace with a word of its annotation that grants nothing, once logged."""

    def replaced(self, items: list[Json]) -> None:
        """Stores the permissions of all namespaces, in place of the earlier ones."""
        self._note_unknown(items)
        permissions = {_name(item): parse_permissions(_allow(item)) for item in items}
        self._store({name: allowed for name, allowed in permissions.items() if allowed})

    def changed(self, kind: str, item: Json) -> None:
        """Stores the permissions of one namespace, or removes those of a deleted one.

        The cache stays as it is if the namespace's permissions have not changed.

        Args:
            kind: the event: ADDED, MODIFIED or DELETED.
            item: the Namespace, as JSON; a deleted one in its last version.
        """
        name, allowed = _name(item), parse_permissions(_allow(item))
        if kind == "DELETED":
            allowed = frozenset()
        else:
            self._note_unknown([item])
        if self._permissions.get(name, frozenset()) == allowed:
            return
        others = {other: permissions for other, permissions in self._permissions.items() if other != name}
        self._store({**others, name: allowed} if allowed else others)

    def _note_unknown(self, items: Iterable[Json]) -> None:
        """Logs once each word of a namespace's annotation that grants nothing.

        The policy fairgpu-namespace refuses a new such word, but not one that an annotation had before the policy
        existed.
        """
        found = {(_name(item), word) for item in items for word in unknown_permissions(_allow(item))}
        for name, word in sorted(found - self._noted):
            _log.warning("unknown permission", namespace=name, given=word, allowed=", ".join(Permission))
        self._noted |= found

    def _store(self, permissions: dict[str, frozenset[Permission]]) -> None:
        self._permissions = permissions
        self._cache.learn_permissions(permissions)


class PriorityClassesView(_Logged):
    """A view of PriorityClasses, which stores them in the cache.

    The view logs if one of FairGPU's classes is missing, or if its value is not that of the settings.
    """

    def __init__(self, cache: AdmissionCache, settings: Priorities) -> None:
        self._cache = cache
        self._settings = settings
        self._items: dict[str, Json] = {}

    def replaced(self, items: list[Json]) -> None:
        """Stores all priority classes, in place of the earlier ones."""
        self._items = {_name(item): item for item in items}
        self._store()

    def changed(self, kind: str, item: Json) -> None:
        """Stores or removes one priority class.

        Args:
            kind: the event: ADDED, MODIFIED or DELETED.
            item: the PriorityClass, as JSON; a deleted one in its last version.
        """
        if kind == "DELETED":
            self._items.pop(_name(item), None)
        else:
            self._items[_name(item)] = item
        self._store()

    def _store(self) -> None:
        classes = {name: read_priority_class(item) for name, item in self._items.items()}
        default = next((name for name, item in self._items.items() if item.get("globalDefault")), None)
        self._cache.learn_classes(classes, default)
        settings = self._settings
        for name, value in (
            (settings.in_budget_class, settings.in_budget_value),
            (settings.over_budget_class, settings.over_budget_value),
        ):
            live = classes.get(name)
            if live is None:
                _log.error("priority class missing: GPU pods of this class will be refused", priority_class=name)
            elif live.value != value:
                _log.warning(
                    "priority class differs from the settings", priority_class=name, live=live.value, set=value
                )


class ClaimsView(_Logged):
    """A view of ResourceClaims, or of ResourceClaimTemplates, which stores those that ask for no GPU in the cache."""

    def __init__(self, cache: AdmissionCache, kind: str, device_classes: tuple[str, ...]) -> None:
        self._cache = cache
        self._kind = kind
        self._of_gpus = frozenset(device_classes)
        self._others: set[OtherClaim] = set()
        self.missing = False
        """Whether the API server lacks the collection in the version that was requested."""

    def read(self, item: Json) -> Json:
        """Returns the parts of an object that this view needs: its names, and the spec of the claim.

        For a ResourceClaimTemplate, the spec is that of the claims that are made from it.
        """
        metadata, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
        named = {key: metadata[key] for key in ("namespace", "name", "resourceVersion") if key in metadata}
        return {"metadata": named, "spec": mapping(spec.get("spec")) or spec}

    def replaced(self, items: list[Json]) -> None:
        """Stores the claims or templates that ask for no GPU, in place of the earlier ones.

        Args:
            items: all claims, or all templates, as JSON.
        """
        self._others = {self._key(item) for item in items if not self._asks_for_gpu(item)}
        self._cache.learn_other_claims(self._kind, frozenset(self._others))

    def changed(self, kind: str, item: Json) -> None:
        """Stores one claim or template that asks for no GPU; removes one that is deleted, or that asks for a GPU now.

        Args:
            kind: the event: ADDED, MODIFIED or DELETED.
            item: the claim or the template, as JSON; a deleted one in its last version.
        """
        key = self._key(item)
        if kind == "DELETED" or self._asks_for_gpu(item):
            if key not in self._others:
                return
            self._others.discard(key)
        elif key in self._others:
            return
        else:
            self._others.add(key)
        self._cache.learn_other_claims(self._kind, frozenset(self._others))

    def failed(self, error: ApiError) -> None:
        """Sets `missing` to whether the API server lacks the collection, and logs any other error.

        Args:
            error: the error of the request that failed.
        """
        self.missing = error.not_found
        if not error.not_found:
            super().failed(error)

    def _key(self, item: Json) -> OtherClaim:
        metadata = mapping(item.get("metadata"))
        namespace, name = str(metadata.get("namespace")), str(metadata.get("name"))
        return (namespace, None, name) if self._kind == CLAIM_TEMPLATES else (namespace, name, None)

    def _asks_for_gpu(self, item: Json) -> bool:
        """Whether a claim asks for a device of a class of GPUs. A request for administrative access does not count.

        In v1 the class is in the request's field `exactly`; in v1beta1 and v1beta2 it may be in the request itself.
        Alternatives are in `firstAvailable` in each version.
        """
        devices = mapping(mapping(item.get("spec")).get("devices"))
        for request in mappings(devices.get("requests")):
            exactly = mapping(request.get("exactly")) or request
            asked = [exactly, *mappings(request.get("firstAvailable"))]
            classes = {one.get("deviceClassName") for one in asked if one.get("adminAccess") is not True}
            if not self._of_gpus.isdisjoint(classes):
                return True
        return False


def follow_claims(api: KubernetesAPI, view: ClaimsView, kind: str, wait: Wait, random: Callable[[], float]) -> None:
    """Keeps a view of ResourceClaims or their templates current until `wait` returns true.

    An API server without Dynamic Resource Allocation is asked for it again at intervals.

    Args:
        api: the API server.
        view: the view of the claims or of the templates, as `kind` says.
        kind: `resourceclaims` or `resourceclaimtemplates`.
        wait: sleeps for the given seconds, and returns whether the process ends.
        random: returns a number in [0, 1), by which the intervals vary.
    """
    while not wait(0):
        version = _version_of_claims(api)
        if version:
            view.missing = False
            collection = Collection(f"{resource_claims.GROUP}/{version}/{kind}", {}, view.read)
            reflect(api, collection, view, lambda seconds: view.missing or wait(seconds), random)
        if wait(ASK_AGAIN_SECONDS * (0.5 + random())):
            return


def _version_of_claims(api: KubernetesAPI) -> str:
    """Returns the newest API version of ResourceClaims that the API server has and admission reads; empty for none.

    The result is also empty if the API server cannot be asked; that is logged.
    """
    try:
        return resource_claims.RESOURCE.served_version(api)
    except ApiError as error:
        if not error.not_found:
            _log.warning("watch failed", view=ClaimsView.__name__, error=str(error))
        return ""


def _name(item: dict[str, Any]) -> str:
    return str(mapping(item.get("metadata")).get("name"))


def _allow(item: dict[str, Any]) -> Any:
    """Returns the value of a namespace's annotation `fairgpu.io/allow`; None if the namespace lacks the annotation."""
    return mapping(mapping(item.get("metadata")).get("annotations")).get(names.NAMESPACE_ALLOW)
