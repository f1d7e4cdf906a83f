"""Displays of a long run: lines in a log, a bar on a terminal, or the terminal UI."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from starling.node.cli.common import console, is_lively

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

LINE_S = 5.0  # seconds between lines where no terminal draws a bar
PATIENCE_S = 1.0  # seconds before the terminal shows what takes so long
CLOSE_S = 0.8  # seconds for the terminal UI to restore the terminal


class Display:
    """Progress display that shows nothing. A context manager that leaves the terminal as it was."""

    def __enter__(self) -> Self:
        """Show nothing before the first `show`."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Remove the display from the terminal."""

    def show(self, fraction: float, line: str) -> None:
        """Show how far the run is, 0 to 1, and one line about it; called several times a second."""


class Lines(Display):
    """Prints a line every few seconds, for logs."""

    def __init__(self) -> None:
        self._next = 0.0

    def show(self, fraction: float, line: str) -> None:
        """Print the line if it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_S
            click.echo(f"{fraction:4.0%}  {line}", err=True)


class Bar(Display):
    """A progress bar on standard error."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, TaskProgressColumn

        self._bar = _progress(BarColumn(), TaskProgressColumn())
        self._task = self._bar.add_task("", total=1.0)

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()

    def show(self, fraction: float, line: str) -> None:
        """Move the bar to a fraction in [0, 1], with a line of text."""
        self._bar.start()
        self._bar.update(self._task, completed=fraction, description=line)


def on_stderr(otherwise: type[Display] = Lines) -> Display:
    """Return a bar if standard error is a terminal, else another display."""
    return Bar() if is_lively(sys.stderr) else otherwise()


class Terminal(Display):
    """Shows the terminal UI, in a separate process, for a demo's folder, which must hold a node by the first `show`; then a bar."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bar = Bar()
        self._ui: subprocess.Popen[bytes] | None = None

    def __exit__(self, *raised: object) -> None:
        """End the UI by SIGINT, upon which it restores the terminal; a second one, as after Ctrl-C, would prevent that."""
        if self._ui is not None:
            grace_s = CLOSE_S if KeyboardInterrupt in raised else 0.0
            for patience_s, end in ((grace_s, partial(self._ui.send_signal, signal.SIGINT)), (CLOSE_S, self._ui.kill)):
                try:
                    self._ui.wait(patience_s)
                except subprocess.TimeoutExpired:
                    end()
            self._ui.wait()
        self._bar.__exit__(*raised)

    def show(self, fraction: float, line: str) -> None:
        """Open the UI, or move the bar if it was closed."""
        if self._ui is None:
            # Ctrl-C must reach this program too, and end the demo.
            environment = {**os.environ, "TEXTUAL_ALLOW_SIGNALS": "1"}
            self._ui = subprocess.Popen([sys.executable, "-m", "starling.tui", str(self._folder)], env=environment)
        elif self._ui.poll() is not None:
            self._bar.show(fraction, line)


@contextmanager
def slow(what: str) -> Iterator[None]:
    """Show on a terminal what is being done and for how long, if it takes longer than a second."""
    shown: list[Progress] = []

    def show() -> None:
        from rich.progress import SpinnerColumn

        spinner = _progress(SpinnerColumn())
        spinner.add_task(what)
        spinner.start()
        shown.append(spinner)

    timer = threading.Timer(PATIENCE_S, show)
    timer.daemon = True
    if is_lively(sys.stderr):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        for spinner in shown:
            spinner.stop()


def _progress(*columns: ProgressColumn) -> Progress:
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    words = (TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    return Progress(*columns, *words, console=console(stderr=True), transient=True)
