"""Configures logs: one JSON object a line for each event, with ids in place of prose."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

SECRET_KEYS = frozenset({"authorization", "password", "secret", "token"})


def configure_logs(level: str = "INFO", stream: TextIO = sys.stderr) -> None:
    """Sends the log events of structlog and of the standard library to a stream alone, as JSON lines.

    Args:
        level: the lowest level that is logged, such as `INFO`.
        stream: the stream, by default the standard error output.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        hide_secrets,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)


def hide_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replaces the values of the keys in SECRET_KEYS in a log event, in any case of letters; returns the event.

    The values of other keys are logged, so none of them may be a secret.
    """
    for key in event:
        if key.lower() in SECRET_KEYS:
            event[key] = "(hidden)"
    return event
