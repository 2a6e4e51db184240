"""The output of the demonstration: colour and a moving bar in a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fairgpu.states import BudgetState

BAR_CELLS = 34
PLAIN_WIDTH = 1000
"""The width of lines outside a terminal: none is broken, so that grep finds whole lines."""
PLAIN_SECONDS = 2.0
UNIT = 1_000_000
"""microGPU-seconds in a GPU-second."""

STATE_STYLES = {
    BudgetState.UNLIMITED: "bold cyan",
    BudgetState.OPEN: "bold green",
    BudgetState.GRACE: "bold yellow",
    BudgetState.OVER: "bold red",
    BudgetState.HELD: "bold magenta",
}


@dataclass(frozen=True)
class Reading:
    """A budget at one moment.

    Attributes:
        budget: the budget's name.
        state: the budget's state.
        available: the allowance and grants of the period, in microGPU-seconds.
        spent: the cost of the pods' reservations in the period, in microGPU-seconds.
        used: the GPU time that the sidecars reported in sessions that are open, in microGPU-seconds.
        rate: the cost of the running reservations, in microGPU-seconds a second.
    """

    budget: str
    state: BudgetState
    available: int
    spent: int
    used: int
    rate: int


class Screen:
    """The output of the demonstration to one terminal, file or pipe."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(highlight=False)
        if not console.is_terminal:
            console = Console(file=console.file, highlight=False, width=PLAIN_WIDTH, no_color=True)
        self._console = console
        self._started = time.monotonic()
        self._act = 0

    def title(self, title: str, lines: Sequence[str]) -> None:
        """Prints the demonstration's title and introduction."""
        if self._console.is_terminal:
            body = Group(*(Text(line) for line in lines))
            self._console.print(Panel(body, title=f"[bold]{title}", title_align="left", border_style="cyan"))
        else:
            self._console.print(title)
            for line in lines:
                self._console.print(f"  {line}", markup=False)

    def section(self, title: str) -> None:
        """Prints the heading of the demonstration's next section."""
        self._act += 1
        self._console.print()
        self._console.print(f"[bold cyan]{self._act}[/]  [bold]{title}[/]")

    def say(self, text: str) -> None:
        """Prints a comment on the demonstration's next step."""
        self._console.print(Padding.indent(Text(text, style="dim"), 3))

    def done(self, text: str) -> None:
        """Prints that a step of the demonstration was checked and succeeded.

        Args:
            text: the step's result.
        """
        elapsed = f"{time.monotonic() - self._started:4.1f} s"
        self._console.print(f"   [green]✓[/] {text}  [dim]{elapsed}[/]")

    def command(self, text: str) -> None:
        """Prints a command line as a person would type it."""
        self._console.print(Padding.indent(Text.assemble(("$ ", "cyan"), (text, "bold")), 3))

    def output(self, text: str, style: str = "") -> None:
        """Prints the output of a command or of the API server.

        Args:
            text: the output, of one or more lines.
            style: the style of its lines in a terminal; empty for the usual one.
        """
        for line in text.rstrip().splitlines():
            self._console.print(Padding.indent(Text(line, style=style), 5))

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Prints a table.

        Args:
            headings: the headings of the columns.
            rows: the rows, each with a cell for each heading.
        """
        table = Table(*headings, box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print(Padding.indent(table, 3))

    @contextmanager
    def meter(self) -> Iterator[Meter]:
        """Returns a context with a bar that shows the spending of a budget: a moving bar in a terminal, else lines."""
        if not self._console.is_terminal:
            yield Meter(self._console, None)
            return
        with Live(console=self._console, refresh_per_second=10, transient=True) as live:
            yield Meter(self._console, live)

    def verdict(self, text: str, *, good: bool) -> None:
        """Prints the result of the demonstration.

        Args:
            text: the result, as a sentence.
            good: whether the demonstration succeeded.
        """
        self._console.print()
        self._console.print(Text(text, style="bold green" if good else "bold red"))


class Meter:
    """A bar that shows the spending of a budget."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._state: BudgetState | None = None
        self._printed = 0.0

    def show(self, reading: Reading) -> None:
        """Shows the newest reading of the budget; if the state has changed, prints it as a line that stays.

        Outside a terminal, a reading without a change is printed only once PLAIN_SECONDS have passed since the last
        line.
        """
        line = Padding.indent(_line(reading), 3)
        changed = reading.state is not self._state
        self._state = reading.state
        if self._live is not None:
            if changed:
                self._console.print(line)
            self._live.update(line)
        elif changed or time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            self._console.print(line)


def _line(reading: Reading) -> Text:
    available = max(reading.available, 1)
    scale = BAR_CELLS / max(available, reading.spent)
    spent, used = round(reading.spent * scale), round(min(reading.used, reading.spent) * scale)
    limit = round(available * scale)
    within, beyond = min(spent, limit), max(spent - limit, 0)
    style = STATE_STYLES[reading.state]
    return Text.assemble(
        (f"{reading.budget} ", "bold"),
        (f"{reading.state.value:<6}", style),
        ("█" * min(used, within) + "▓" * max(within - used, 0), "green" if not beyond else "yellow"),
        ("▒" * beyond, "red"),
        ("░" * (BAR_CELLS - within - beyond), "dim"),
        f"  reserved {reading.spent / UNIT:5.1f} of {reading.available / UNIT:.0f} GPU·s",
        (f"  used {reading.used / UNIT:5.1f}", "dim"),
        (f"  at {reading.rate / UNIT:.2f} GPUs", "dim"),
    )
