"""How a run is shown that takes a while: lines in a log, a bar on a terminal, or the terminal UI."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import click

from starling.node.cli.common import console, is_lively

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_S = 5.0  # between lines where no terminal draws a bar
PATIENCE_S = 1.0  # before a person is shown what takes so long
CLOSE_S = 0.8  # for the terminal UI to restore the terminal


class Display(Protocol):
    """Where progress is shown. A context manager that leaves the terminal as it was."""

    def __enter__(self) -> Self:
        """Nothing is shown before the first `show`."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take it away."""
        ...

    def show(self, fraction: float, line: str) -> None:
        """Show how far the run is, and one line about it; called several times a second."""
        ...


class Lines:
    """A line every few seconds, for logs."""

    def __init__(self) -> None:
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Lines stay."""

    def show(self, fraction: float, line: str) -> None:
        """Print it if it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_S
            click.echo(f"{fraction:4.0%}  {line}", err=True)


class Bar:
    """A progress bar on standard error."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._bar = Progress(*columns, console=console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, fraction: float, line: str) -> None:
        """Move the bar."""
        self._bar.start()
        self._bar.update(self._task, completed=fraction, description=line)


def on_stderr() -> Display:
    """A bar where a terminal reads, else lines."""
    return Bar() if is_lively(sys.stderr) else Lines()


class Terminal:
    """The terminal UI as a process of its own on our terminal; a bar after a person has closed it.

    Args:
        folder: the demo's; a node's directory must be in it by the first `show`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bar = Bar()
        self._ui: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(interrupted=kind is KeyboardInterrupt)
        self._bar.__exit__(kind, error, trace)

    def show(self, fraction: float, line: str) -> None:
        """Open the UI, or move the bar if it was closed."""
        if self._ui is None:
            # Ctrl-C must reach this program too, and end the demo.
            environment = {**os.environ, "TEXTUAL_ALLOW_SIGNALS": "1"}
            self._ui = subprocess.Popen([sys.executable, "-m", "starling.tui", str(self._folder)], env=environment)
        elif self._ui.poll() is not None:
            self._bar.show(fraction, line)

    def _close(self, *, interrupted: bool) -> None:
        """SIGINT, upon which the UI restores the terminal; a second one would stop it from doing so.

        Args:
            interrupted: a Ctrl-C has reached it already, if it came from this terminal.
        """
        if self._ui is None:
            return
        for patience_s, action in ((CLOSE_S if interrupted else 0.0, signal.SIGINT), (CLOSE_S, signal.SIGKILL)):
            try:
                self._ui.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._ui.send_signal(action)
        self._ui.wait()


class Slow:
    """Around work that may take longer than a second: a terminal then shows what it is, and for how long it has run.

    Args:
        what: under way, for a person.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._shown: Progress | None = None

    def __enter__(self) -> Self:
        if is_lively(sys.stderr):
            self._timer = threading.Timer(PATIENCE_S, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._shown is not None:
                self._shown.stop()

    def _show(self) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._timer is None:  # it has just ended
                return
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._shown = Progress(*columns, console=console(stderr=True), transient=True)
            self._shown.add_task(self._what)
            self._shown.start()


class Steps:
    """A bar over steps whose number is known, where a terminal reads; else nothing."""

    def __init__(self, total: int) -> None:
        self._total = max(total, 1)
        self._done = 0
        self._bar = Bar() if is_lively(sys.stderr) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.__exit__()

    def begin(self, what: str) -> None:
        """The next step."""
        if self._bar is not None:
            self._bar.show(self._done / self._total, f"{self._done + 1}/{self._total}  {what}")
        self._done += 1
