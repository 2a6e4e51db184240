"""What pods that were let in may still spend: safe admission keeps that aside.

The rule is Slurm's, which with AccountingStorageEnforce=safe starts a job only where its limit of GPU time pays for
its whole run (https://slurm.schedmd.com/resource_limits.html): a job's time limit is a pod's activeDeadlineSeconds.
"""

from __future__ import annotations

from timekeeper.rules.money import cost


def left_to_run(deadline: int | None, ran: int, default: int) -> int:
    """How long a pod may still run, in nanoseconds.

    Args:
        deadline: its activeDeadlineSeconds in nanoseconds; None where it has none.
        ran: how long it has run; 0 while it waits.
        default: what a pod without a deadline counts as going to run, however long it has.
    """
    return default if deadline is None else max(deadline - ran, 0)


def commitment(rate: int, deadline: int | None, ran: int, default: int) -> int:
    """What a pod of a rate (microGPU-seconds a second) may still spend; times as for left_to_run()."""
    return cost(rate, left_to_run(deadline, ran, default))
