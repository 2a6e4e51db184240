"""From the settings under which the books are kept to what is asked of an audit."""

from __future__ import annotations

from timekeeper.audit.auditing import Question
from timekeeper.metering.sessions import MeterFrom
from timekeeper.settings import TimekeeperSettings


def question_of(settings: TimekeeperSettings, accounts: tuple[str, ...] = (), period: int | None = None) -> Question:
    """What is to be audited under these settings."""
    metering = settings.metering
    return Question(
        accounts,
        period,
        bill=metering.bill.value,
        from_binding=metering.meter_from is MeterFrom.BIND,
    )
