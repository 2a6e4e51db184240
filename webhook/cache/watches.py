"""The watches on the API server: the permissions of namespaces, and the priority classes."""

from __future__ import annotations

from typing import Any

import structlog

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json
from fairgpu.cluster.reflector import Collection
from fairgpu.json_values import mapping
from fairgpu.permissions import Permission, parse_permissions
from webhook.admission.knowledge import read_priority_class
from webhook.cache.admission_cache import AdmissionCache
from webhook.settings import Priorities

_log = structlog.get_logger(__name__)

NAMESPACES = Collection("/api/v1/namespaces", {})
PRIORITY_CLASSES = Collection("/apis/scheduling.k8s.io/v1/priorityclasses", {})


class _Logged:
    """A view that logs its failures."""

    def confirmed(self) -> None:
        """Does nothing: no decision depends on the age of these objects."""

    def failed(self, error: ApiError) -> None:
        """Logs the failure; the view stays as it is."""
        _log.warning("watch failed", view=type(self).__name__, error=str(error))


class NamespacesView(_Logged):
    """The permissions of namespaces that have any."""

    def __init__(self, cache: AdmissionCache) -> None:
        self._cache = cache
        self._permissions: dict[str, frozenset[Permission]] = {}

    def replaced(self, items: list[Json]) -> None:
        """Stores all namespaces."""
        permissions = {_name(item): _permissions(item) for item in items}
        self._store({name: allowed for name, allowed in permissions.items() if allowed})

    def changed(self, kind: str, item: Json) -> None:
        """Stores one namespace; most have no permissions and change nothing."""
        name, allowed = _name(item), _permissions(item)
        if kind == "DELETED":
            allowed = frozenset()
        if self._permissions.get(name, frozenset()) == allowed:
            return
        others = {other: permissions for other, permissions in self._permissions.items() if other != name}
        self._store({**others, name: allowed} if allowed else others)

    def _store(self, permissions: dict[str, frozenset[Permission]]) -> None:
        self._permissions = permissions
        self._cache.learn_permissions(permissions)


class PriorityClassesView(_Logged):
    """The priority classes; logs where one of FairGPU's differs from the settings."""

    def __init__(self, cache: AdmissionCache, settings: Priorities) -> None:
        self._cache = cache
        self._settings = settings
        self._items: dict[str, Json] = {}

    def replaced(self, items: list[Json]) -> None:
        """Stores all classes."""
        self._items = {_name(item): item for item in items}
        self._store()

    def changed(self, kind: str, item: Json) -> None:
        """Stores one class."""
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


def _name(item: dict[str, Any]) -> str:
    return str(mapping(item.get("metadata")).get("name"))


def _permissions(item: dict[str, Any]) -> frozenset[Permission]:
    annotations = mapping(mapping(item.get("metadata")).get("annotations"))
    return parse_permissions(annotations.get(names.NAMESPACE_ALLOW))
