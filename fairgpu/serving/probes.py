"""The two probes that each service answers: whether the service lives, and whether it is ready."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import orjson
from flask import Flask, jsonify
from flask import Response as FlaskResponse

from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.messages import ImmediateAnswer, Response, problem

HEALTH = ("GET", "/healthz")
READINESS = ("GET", "/readyz")

Missing = Callable[[], tuple[str, ...]]
"""A function that names the things that a worker still waits for before it is ready; empty once it is ready."""


def build_probes(lifecycle: Lifecycle, missing: Missing) -> dict[tuple[str, str], ImmediateAnswer]:
    """Returns the functions that answer a service's two probes, keyed by method and path.

    The event loop calls them, so that an answer proves that the loop runs. `GET /healthz` is answered with 200 for as
    long as the worker lives. `GET /readyz` is answered with 200 once nothing is missing. Before that, and again once
    the worker begins to stop, the answer is a problem document (503).

    Args:
        lifecycle: the life of the worker, which says when the worker begins to stop.
        missing: returns the names of the things that the worker waits for before it is ready; empty once it is ready.
    """
    healthy, ready = (Response(200, orjson.dumps({"status": status})) for status in ("ok", "ready"))

    def readiness(_body: bytes) -> Response:
        if lifecycle.draining:
            return problem(503, "Service Unavailable", "this replica is about to end")
        absent = missing()
        return problem(503, "Service Unavailable", f"waits for: {', '.join(absent)}") if absent else ready

    return {HEALTH: lambda _body: healthy, READINESS: readiness}


def build_about(name: str) -> Flask:
    """Returns a Flask application that answers `GET /` with the service's name and version, and no other path."""
    application = Flask(name)

    @application.get("/")
    def about() -> FlaskResponse:
        return jsonify(name=name, version=version("fairgpu"))

    return application
