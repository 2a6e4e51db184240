"""How long use and ledgers are kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retention:
    """What the admin decides.

    Attributes:
        hourly_days: whole days before today of which hours can be told apart.
        months: whole months before the present one of which anything is kept.
        exported: whether a month is kept until it was written outside.
    """

    hourly_days: int = 8
    months: int = 13
    exported: bool = False
