"""The common base of the agent's mirrors of collections of the API server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairgpu.cluster.api import ApiError


@dataclass(eq=False)
class Mirror:
    """The base of a mirror of a collection of the API server's objects.

    `fairgpu.cluster.reflector.reflect` keeps it current, and a subclass stores the objects.

    Attributes:
        notify: called after each change of the objects.
        notify_of_failure: called with the error after a request to the API server, or the mirror itself, failed.
        notify_of_confirmation: called when the mirror is known to be current.
    """

    notify: Callable[[], None]
    notify_of_failure: Callable[[ApiError], None]
    notify_of_confirmation: Callable[[], None] = lambda: None

    def confirmed(self) -> None:
        """Calls `notify_of_confirmation`: the API server has confirmed that the mirror is current."""
        self.notify_of_confirmation()

    def failed(self, error: ApiError) -> None:
        """Calls `notify_of_failure` with the error of a request to the API server; the mirrored objects stay."""
        self.notify_of_failure(error)
