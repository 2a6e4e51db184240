"""The verdict on an object: refused with all faults, or admitted with changes and warnings for its author."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from fairgpu.faults import Fault
from webhook.admission.json_patch import Operation

NO_AUDIT: Mapping[str, str] = MappingProxyType({})


class Verdict:
    """The decision on an admission review: a refusal if there are faults, else an admission with changes.

    Attributes:
        faults: all faults of the object, at once.
        operations: JSON Patch operations on the object, in order.
        warnings: lines that kubectl shows. A refused pod has none; a refused workload may have some.
        audit: annotations for the API server's audit log; the server puts the webhook's name before the keys.
    """

    def __init__(
        self,
        *,
        faults: tuple[Fault, ...] = (),
        operations: tuple[Operation, ...] = (),
        warnings: tuple[str, ...] = (),
        audit: Mapping[str, str] = NO_AUDIT,
    ) -> None:
        self.faults: Final = faults
        self.operations: Final = operations
        self.warnings: Final = warnings
        self.audit: Final = audit


UNTOUCHED = Verdict()


class Subject:
    """The request in an AdmissionReview. The fields have the types below; the content of the objects is not checked.

    Attributes:
        uid: the request's uid, which the answer repeats.
        kind: the object's kind as sent, by which the webhook's rules select it.
        sub_resource: the subresource, such as `ephemeralcontainers`; empty for the object itself.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        namespace: the request's namespace; objects may name none.
        name: the object's name in the request; empty if the API server generates it later.
        user: the user who sent the request.
        item: the object, as JSON; empty if the request has none.
        old_item: the object before the change; empty if the request has none.
        size: the bytes of the review as JSON, nearly all of them the objects'; 0 if unknown.
    """

    def __init__(  # noqa: PLR0913 - the fields of a value
        self,
        *,
        uid: str,
        kind: str,
        sub_resource: str,
        operation: str,
        namespace: str,
        name: str,
        user: str,
        item: dict[str, Any],
        old_item: dict[str, Any],
        size: int = 0,
    ) -> None:
        self.uid: Final = uid
        self.kind: Final = kind
        self.sub_resource: Final = sub_resource
        self.operation: Final = operation
        self.namespace: Final = namespace
        self.name: Final = name
        self.user: Final = user
        self.item: Final = item
        self.old_item: Final = old_item
        self.size: Final = size


def objects(value: Any) -> list[tuple[int, dict[str, Any]]]:
    """Returns a pair of index and object for each JSON object in a JSON array; empty for a value that is no array."""
    if not isinstance(value, list):
        return []
    return [(index, item) for index, item in enumerate(value) if isinstance(item, dict)]


def indexes_named(value: Any, names: Collection[str]) -> list[int]:
    """Returns the indexes of the objects in a JSON array whose field `name` is one of some names.

    Args:
        value: the array, such as a pod's list of volumes. A value that is no array gives no indexes.
        names: the names to look for.
    """
    if not isinstance(value, list):
        return []
    return [index for index, item in enumerate(value) if isinstance(item, dict) and item.get("name") in names]
