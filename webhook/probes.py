"""What is asked of the webhook beside reviews: whether it lives, whether it is ready, what it is."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

from flask import Flask, Response, jsonify

from fairgpu.serving.lifecycle import Lifecycle


def build_probes(lifecycle: Lifecycle, missing: Callable[[], tuple[str, ...]]) -> Flask:
    """The Flask application; `missing` names what has to be known before the first review and is not."""
    application = Flask("webhook")

    @application.get("/")
    def about() -> Response:
        return jsonify(name="fairgpu-webhook", version=version("fairgpu"))

    @application.get("/healthz")
    def health() -> Response:
        return jsonify(status="ok")

    @application.get("/readyz")
    def readiness() -> tuple[Response, int]:
        if lifecycle.draining:
            return jsonify(status="ending"), 503
        lacking = missing()
        if lacking:
            return jsonify(status="starting", missing=lacking), 503
        return jsonify(status="ready"), 200

    return application
