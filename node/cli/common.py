"""What commands share: the default run directory, common options, and how results are printed.

Standard output is data, standard error is for people. No color unless a terminal reads that wants it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import click

from starling.node.cli import completion

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_DIR = Path("starling-node")
PIPE_WIDTH = 200  # columns of a table that no terminal folds

Command = TypeVar("Command", bound=Callable[..., Any])


def dir_option(command: Command) -> Command:
    """`--dir DIR`, given to the command as `run_dir: Path`."""
    return click.option(
        "--dir",
        "run_dir",
        metavar="DIR",
        type=completion.RunDirectory(),
        default=DEFAULT_DIR,
        show_default=True,
        help="The node's run directory.",
    )(command)


def preset_option(command: Command) -> Command:
    """`--preset NAME`, given to the command as `preset: str | None`."""
    return click.option(
        "--preset",
        metavar="vouched|open",
        help="Begin with the values for members one knows, or for strangers; docs/robustness.md.",
        shell_complete=completion.presets,
    )(command)


def json_option(command: Command) -> Command:
    """`--json`, given to the command as `as_json: bool`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON for programs; docs/schemas says what is in it."
    )(command)


def is_lively(stream: TextIO) -> bool:
    """A terminal on which lines can be overwritten and color may be used."""
    return stream.isatty() and os.environ.get("TERM", "") not in {"dumb", "unknown"}


def console(*, stderr: bool = False) -> Console:
    """Standard output for tables: as wide as the terminal, wide enough for whole lines where there is none.

    Plain text in a pipe, on a dumb terminal and where NO_COLOR is set (https://no-color.org).
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    plain = not is_lively(stream) or bool(os.environ.get("NO_COLOR"))
    colors: Literal["auto"] | None = None if plain else "auto"
    return Console(
        stderr=stderr, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, color_system=colors,
    )  # fmt: skip


def nobody_reads() -> None:
    """Standard output is a pipe that was closed, as by `head`: what is left to be written, at exit too, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
