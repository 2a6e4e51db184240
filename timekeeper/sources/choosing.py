"""Chooses the source of the timekeeper's objects by the settings: an API server, in any mode, or a folder."""

from __future__ import annotations

import random
import time
from pathlib import Path

from fairgpu.cluster.api import KubernetesAPI
from timekeeper.domain.holdings.claims import DRIVERS
from timekeeper.settings import TimekeeperSettings
from timekeeper.sources.base import Source
from timekeeper.sources.folder import FolderSource
from timekeeper.sources.kubernetes import KubernetesSource
from timekeeper.sources.looking import LookingAtGPUBudgets, LookingSource


def cluster_source(settings: TimekeeperSettings, api: KubernetesAPI | None, folder: Path | None) -> Source:
    """Returns the source of pods and budgets: the API server, or a folder if there is no API server.

    Args:
        settings: the timekeeper's settings; in the mode look, no pod of the API server is written.
        api: the API server; None for the folder.
        folder: the folder in place of the API server, None for the present folder; not used if `api` is given.
    """
    own = settings.own_resources
    if api is None:
        return FolderSource(folder or Path(), time.time_ns, own)
    drivers = DRIVERS | set(settings.other_stacks.drivers)
    return _kind(settings)(api, time.time_ns, random.random, settings.usage.labels, own, drivers)


def _kind(settings: TimekeeperSettings) -> type[KubernetesSource]:
    if settings.mode != "look":
        return KubernetesSource
    return LookingAtGPUBudgets if settings.budgets_from == "objects" else LookingSource
