"""All dialects, and the one reading of a container among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairgpu.dialects import native
from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading
from fairgpu.faults import Fault, field_path

NATIVE: tuple[Dialect, ...] = (native.DIALECT,)
FOREIGN: tuple[Dialect, ...] = ()
DIALECTS: tuple[Dialect, ...] = NATIVE + FOREIGN


def read_container(
    container: Container,
    annotations: Mapping[str, str],
    settings: DialectSettings,
    dialects: Sequence[Dialect] = DIALECTS,
) -> tuple[str, Reading] | None:
    """The dialect that a container speaks and what it says in it; nothing for a container without a GPU.

    Two dialects in one container are a fault: there is no telling which of them its author relies on.
    """
    spoken = [
        (dialect.name, reading)
        for dialect in dialects
        if (reading := dialect.read(container, annotations, settings)) is not None
    ]
    if not spoken:
        return None
    if len(spoken) == 1:
        return spoken[0]
    found = " and ".join(name for name, _ in spoken)
    fault = Fault(
        path=field_path(*container.path, "resources"),
        given=f"the dialects {found} in one container",
        allowed="one dialect in a container",
        instead=f"the keys of {spoken[0][0]} or those of {spoken[1][0]}, not both",
    )
    return found, Reading(faults=(fault, *(fault for _, reading in spoken for fault in reading.faults)))
