"""Hears which containers of a pod speak a dialect, and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairgpu.choices import Path
from fairgpu.demand import is_native_sidecar
from fairgpu.dialects.reading import Container, DialectSettings, Reading
from fairgpu.dialects.registry import BETWEEN_NAMES, DialectSet, read_container, unheard
from fairgpu.faults import Fault, show

MAX_CONTAINERS: Final = 512
"""Containers in one list of a GPU pod: no kubelet starts as many, and each is read, rewritten and metered."""
ENOUGH_FAULTS: Final = 100
"""Once so many are found in one list, the rest of it is not read: the pod is refused whatever it says."""


class ContainerReading:
    """A container that speaks a dialect.

    Attributes:
        path: its field path, such as `("spec", "initContainers", 2)`.
        name: its name; empty where it has none.
        dialect: the dialect's name; several joined by " and " where it speaks several (which is a fault).
        reading: what it says.
        request: what it asks for; nothing where it is faulty, or says that it wants no GPU.
        native_sidecar: whether it is an init container that keeps running.
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
        """Its place in its list."""
        index = self.path[-1]
        assert isinstance(index, int)  # noqa: S101 - paths of containers are built here and end in their index
        return index


class Listener:
    """What all containers of a pod are read with.

    Attributes:
        called_by_annotation: whether the pod's annotations ask for a GPU, so that any container may be meant.
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
        self.called_by_annotation: Final = not dialects.speaking_annotations.isdisjoint(annotations)

    def unheard(self, speaking: tuple[ContainerReading, ...]) -> list[Fault]:
        """The faults of annotations that ask for a GPU which none of the containers that speak takes."""
        if not self.called_by_annotation:
            return []
        heard = frozenset(name for container in speaking for name in container.dialect.split(BETWEEN_NAMES))
        return unheard(self.annotations, heard, self.root, self.dialects)

    def hear(self, spec: Mapping[str, Any], field: str) -> tuple[ContainerReading, ...]:
        """The containers of one list that speak: at most MAX_CONTAINERS; more are a fault (see too_many)."""
        items = spec.get(field)
        if not isinstance(items, list):
            return ()
        anyone = self.called_by_annotation
        readings: list[ContainerReading] = []
        faults = 0
        for index, item in enumerate(items):
            if len(readings) == MAX_CONTAINERS or faults >= ENOUGH_FAULTS:
                break
            if not isinstance(item, dict):
                continue
            resources = mapping(item.get("resources"))
            requests, limits = mapping(resources.get("requests")), mapping(resources.get("limits"))
            if anyone or self.dialects.may_speak(requests, limits):
                reading = self._read(item, (*self.root, "spec", field, index), requests, limits)
                if reading is not None:
                    readings.append(reading)
                    faults += len(reading.reading.faults)
        return tuple(readings)

    def _read(
        self, item: Mapping[str, Any], path: Path, requests: Mapping[str, Any], limits: Mapping[str, Any]
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
        spoken = read_container(container, self.settings, self.dialects)
        if spoken is None:
            return None
        dialect, reading = spoken
        stays = path[-2] == "initContainers" and is_native_sidecar(item)
        return ContainerReading(path, name, dialect, reading, native_sidecar=stays)


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def texts(given: Mapping[Any, Any], read_anyway: frozenset[str]) -> Mapping[str, str]:
    """The entries that are text, and those that should be where their key is in `read_anyway`, as their JSON."""
    return {
        key: value if isinstance(value, str) else show(value)
        for key, value in given.items()
        if isinstance(key, str) and (isinstance(value, str) or key in read_anyway)
    }
