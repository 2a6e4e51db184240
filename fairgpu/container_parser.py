"""Parses the GPU requests of a pod's containers, whatever their dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairgpu.choices import Path
from fairgpu.demand import is_native_sidecar
from fairgpu.dialects.reading import Container, DialectSettings, Reading
from fairgpu.dialects.registry import BETWEEN_NAMES, DialectSet, read_container, unclaimed_annotations
from fairgpu.faults import Fault, show
from fairgpu.json_values import mapping

MAX_CONTAINERS: Final = 512
"""The most containers in one list of a GPU pod; no kubelet starts as many, and each one costs admission time."""
ENOUGH_FAULTS: Final = 100
"""The number of faults in one list after which the rest of it is not parsed, since the pod is refused anyway."""


class ContainerReading:
    """A container with keys of a dialect, as it was read.

    Attributes:
        path: the container's field path, such as `("spec", "initContainers", 2)`.
        name: the container's name; empty if it has none.
        dialect: the dialect's name. If the container has keys of several dialects, which is a fault, their names are
            joined by " and ".
        reading: the request, choices and faults that the dialect reads from the container.
        request: the canonical request; None if the container is faulty or requests no GPU.
        native_sidecar: whether it is a native sidecar: an init container that runs until the pod ends.
    """

    def __init__(self, path: Path, name: str, dialect: str, reading: Reading, *, native_sidecar: bool = False) -> None:
        self.path: Final = path
        self.name: Final = name
        self.dialect: Final = dialect
        self.reading: Final = reading
        self.request: Final = reading.request
        self.native_sidecar: Final = native_sidecar

    @property
    def index(self) -> int:
        """The container's position in its list, counted from 0: the last part of its path."""
        index = self.path[-1]
        assert isinstance(index, int)  # noqa: S101 - paths of containers are built here and end in their index
        return index


class ContainerParser:
    """The reader of the GPU requests of one pod's containers.

    Attributes:
        settings: the admin's settings of the dialects.
        root: the field path of the pod in the object that messages name; empty for a pod.
        dialects: the dialects that are read.
        annotations: the pod's annotations.
        labels: the pod's labels.
        requested_by_annotation: whether annotations of the pod request a GPU. Each container is then read, since any of
            them may be the container that the annotations are meant for.
    """

    def __init__(
        self,
        settings: DialectSettings,
        root: Path,
        dialects: DialectSet,
        annotations: Mapping[str, str],
        labels: Mapping[str, Any],
    ) -> None:
        self.settings: Final = settings
        self.root: Final = root
        self.dialects: Final = dialects
        self.annotations: Final = annotations
        self.labels: Final = labels
        self.requested_by_annotation: Final = dialects.request_by_annotation(annotations)

    def unclaimed_annotations(self, containers: tuple[ContainerReading, ...]) -> list[Fault]:
        """Returns the faults of annotations that request a GPU for a container that the pod does not have.

        Args:
            containers: all containers of the pod with keys of a dialect.
        """
        if not self.requested_by_annotation:
            return []
        claimed = frozenset(name for container in containers for name in container.dialect.split(BETWEEN_NAMES))
        return unclaimed_annotations(self.annotations, claimed, self.root, self.dialects)

    def parse(self, spec: Mapping[str, Any], field: str) -> tuple[ContainerReading, ...]:
        """Returns the containers with keys of a dialect in one of the pod's lists, at most MAX_CONTAINERS.

        After ENOUGH_FAULTS faults, no further container of the list is read.

        Args:
            spec: the pod's spec, as JSON.
            field: the list: `containers`, `initContainers` or `ephemeralContainers`.
        """
        items = spec.get(field)
        if not isinstance(items, list):
            return ()
        every = self.requested_by_annotation
        readings: list[ContainerReading] = []
        faults = 0
        for index, item in enumerate(items):
            if len(readings) == MAX_CONTAINERS or faults >= ENOUGH_FAULTS:
                break
            if not isinstance(item, dict):
                continue
            resources = mapping(item.get("resources"))
            requests, limits = mapping(resources.get("requests")), mapping(resources.get("limits"))
            if every or self.dialects.may_have_gpu_keys(requests, limits):
                reading = self._read(item, (*self.root, "spec", field, index), requests, limits)
                if reading is not None:
                    readings.append(reading)
                    faults += len(reading.reading.faults)
        return tuple(readings)

    def _read(
        self, item: Mapping[str, Any], path: Path, requests: dict[str, Any], limits: dict[str, Any]
    ) -> ContainerReading | None:
        given_name = item.get("name")
        name = given_name if isinstance(given_name, str) else ""
        container = Container(
            path=path,
            name=name,
            requests=requests,
            limits=limits,
            annotations=self.annotations,
            labels=self.labels,
            first=path[-2:] == ("containers", 0),
        )
        dialect_and_reading = read_container(container, self.settings, self.dialects)
        if dialect_and_reading is None:
            return None
        dialect, reading = dialect_and_reading
        stays = path[-2] == "initContainers" and is_native_sidecar(item)
        return ContainerReading(path, name, dialect, reading, native_sidecar=stays)


def texts(given: Mapping[Any, Any], read_anyway: frozenset[str]) -> Mapping[str, str]:
    """Returns a copy of a map without the entries whose values are no texts, unless `read_anyway` has their keys.

    Args:
        given: the map, such as a pod's annotations, as JSON.
        read_anyway: the keys whose values may be of any type; a value that is no text is returned as its JSON.
    """
    return {
        key: value if isinstance(value, str) else show(value)
        for key, value in given.items()
        if isinstance(key, str) and (isinstance(value, str) or key in read_anyway)
    }
