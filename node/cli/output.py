"""What commands share: the default run directory, common options, and how results are printed.

Standard output is data, standard error is for people. No colour unless a terminal reads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

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
        type=click.Path(path_type=Path),
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
    )(command)


def json_option(command: Command) -> Command:
    """`--json`, given to the command as `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def console() -> Console:
    """Standard output for tables: as wide as the terminal, wide enough for whole lines where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
