"""When a cron expression's moments are on the wall clock: five fields, as crontab(5) of Debian's cron has them.

Days count from Sunday = 0 (7 is Sunday, too), and names are taken. Where day of month and day of week are both
restricted, either is enough. A day that a month does not have is passed over; L is the last one.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from itertools import takewhile

from cronsim import CronSim, CronSimError

FIELDS = 5
AROUND = timedelta(hours=26)
"""Clocks jump by less: a zone that crosses the date line skips a day."""
ALLOWED = "minute hour day-of-month month day-of-week, as in crontab(5), with one number for the minute"


class CronError(ValueError):
    """A text that is no cron expression, or begins periods too often or never; the message says what is allowed."""


@lru_cache(maxsize=1024)
def check_cron(expression: str) -> str:
    """The expression, if its moments are at least an hour apart and there are any.

    Raises:
        CronError: they are not, or it is none.
    """
    try:
        if len(expression.split()) != FIELDS or not expression.isascii():
            raise CronError(ALLOWED)
        schedule = CronSim(expression, datetime(2000, 1, 1))  # noqa: DTZ001 - wall-clock time
        if len(schedule.minutes) != 1:
            raise CronError(f"{ALLOWED}: a period lasts an hour at least")
        next(schedule)
    except CronSimError as error:
        raise CronError(f"{ALLOWED} ({error})") from error
    except (StopIteration, ValueError, AssertionError) as error:
        raise error if isinstance(error, CronError) else CronError(f"{ALLOWED}, on a day that there is") from error
    return expression


def moments_around(expression: str, local: datetime) -> list[datetime]:
    """The moments within a day of a wall-clock time, and at least one more on either side."""
    before = next(CronSim(expression, local - AROUND, reverse=True))
    coming = CronSim(expression, before)
    inside = list(takewhile(lambda moment: moment <= local + AROUND, coming))
    return [before, *inside, coming.dt]
