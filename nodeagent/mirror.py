"""The common part of the agent's mirrors of the API server's collections: whom they notify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairgpu.cluster.api import ApiError


@dataclass(eq=False)
class Mirror:
    """A mirror that `fairgpu.cluster.reflector.reflect` keeps current; a subclass keeps the objects.

    Attributes:
        notify: called after each change of the objects.
        notify_of_failure: called where a request to the API server failed.
        notify_of_confirmation: called when the mirror is known to be current.
    """

    notify: Callable[[], None]
    notify_of_failure: Callable[[ApiError], None]
    notify_of_confirmation: Callable[[], None] = lambda: None

    def confirmed(self) -> None:
        """Passes on that the mirror is current; no decision depends on its age."""
        self.notify_of_confirmation()

    def failed(self, error: ApiError) -> None:
        """Passes on that a request to the API server failed; the mirror stays as it is."""
        self.notify_of_failure(error)
