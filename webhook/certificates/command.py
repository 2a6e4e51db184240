"""The process of `fairgpu webhook certificates`: it keeps CA, certificate and webhook configurations until told to end.

It listens on no port. It touches a file after each look, by which a probe sees that it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import structlog

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.serving.tls import ChainError
from webhook.certificates.keeping import Places, keep
from webhook.certificates.storing import SecretStore
from webhook.certificates.trust import Configurations
from webhook.settings import Certificates

_log = structlog.get_logger(__name__)


def places_of(api: KubernetesAPI, settings: Certificates) -> Places:
    """Where everything is in a cluster."""
    return Places(
        configurations=Configurations(api),
        leaf=SecretStore(api, settings.namespace, settings.secret),
        authorities=SecretStore(api, settings.namespace, settings.authority_secret),
    )


def run(
    places: Places,
    settings: Certificates,
    now: Callable[[], datetime],
    wait: Callable[[float], bool],
    alive: Path | None = None,
) -> None:
    """Keeps everything current until `wait` says that the process is to end.

    Args:
        places: where everything is.
        settings: lives, names, and how often to look.
        now: the time.
        wait: waits that many seconds, or less if everything is to end, and says whether it is.
        alive: a file to touch after each look.
    """
    while True:
        try:
            keep(places, settings, now)
        except ChainError as error:
            _log.error("certificates not kept", error=str(error))
        if alive is not None:
            alive.touch()
        if wait(settings.check_seconds):
            return
