"""How many files and connections this process may have open."""

from __future__ import annotations

import resource

import structlog

_log = structlog.get_logger(__name__)


def allow_descriptors(wanted: int) -> None:
    """Raises the soft limit as far as it is wanted and allowed; many container runtimes set it to 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed < wanted:
        _log.warning("few file descriptors are allowed: connections may be refused", allowed=allowed, wanted=wanted)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
