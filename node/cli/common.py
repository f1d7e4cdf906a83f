"""What commands share: common options, the question to a running node, and how results are printed.

Standard output is data, standard error is for people. No color unless a terminal reads that wants it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import click
import msgspec

from starling.node.cli import completion

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_DIR = Path("starling-node")
PIPE_WIDTH = 200  # columns of a table that is not written to a terminal: wide enough that no line folds

Command = TypeVar("Command", bound=Callable[..., Any])


# --- options ----------------------------------------------------------------------------------------------------


def dir_option(command: Command) -> Command:
    """`[DIR]` as the last argument, or `--dir DIR`; given to the command as `run_dir: Path`."""

    @click.argument("directory", metavar="[DIR]", required=False, type=completion.RunDirectory())
    @click.option(
        "--dir", "run_dir", metavar="DIR", type=completion.RunDirectory(),
        help=f"The node's run directory; DIR as the last word does the same.  [default: {DEFAULT_DIR}]",
    )  # fmt: skip
    @wraps(command)
    def with_directory(*args: Any, directory: Path | None, run_dir: Path | None, **options: Any) -> Any:
        if directory is not None and run_dir is not None and directory != run_dir:
            raise click.UsageError(f"--dir {run_dir} and DIR {directory} are two directories; give one")
        return command(*args, run_dir=run_dir or directory or DEFAULT_DIR, **options)

    return with_directory  # type: ignore[return-value]  # same callback, one parameter more on the command line


def preset_option(command: Command) -> Command:
    """`--preset NAME`, given to the command as `preset: str | None`."""
    return click.option(
        "--preset",
        metavar="vouched|open",
        help="Start from the values for known members, or for strangers; see docs/robustness.md.",
        shell_complete=completion.presets,
    )(command)


def set_option(*parts: str, help: str) -> Callable[[Command], Command]:
    """`--set KEY=VALUE`, given to the command as `assignments: tuple[str, ...]`.

    Args:
        parts: whose keys are completed: manifest, node, scenario.
        help: for `--help`.
    """
    return click.option(
        "--set", "assignments", multiple=True, metavar="KEY=VALUE", help=help, shell_complete=completion.keys(*parts)
    )


def json_option(command: Command) -> Command:
    """`--json`, given to the command as `as_json: bool`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON for programs; schemas are in docs/schemas."
    )(command)


# --- printing ---------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """A line for people, on standard error."""
    click.echo(text, err=True)


def emit(document: msgspec.Struct) -> None:
    """Print a JSON document on one line and flush it: a program may wait for it. Numbers that are not finite become null."""
    click.echo(msgspec.json.encode(document))


def emit_plain(fields: Mapping[str, object]) -> None:
    """The same for plain data, such as a node's answer."""
    click.echo(msgspec.json.encode({"version": 1, **fields}))


def is_lively(stream: TextIO) -> bool:
    """A terminal on which lines can be overwritten and color may be used."""
    return stream.isatty() and os.environ.get("TERM", "") not in {"dumb", "unknown"}


def console(*, stderr: bool = False) -> Console:
    """Where tables are printed: as wide as the terminal, wide enough for whole lines where there is none.

    Plain text in a pipe, on a dumb terminal and where NO_COLOR is set (https://no-color.org).
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    plain = not is_lively(stream) or bool(os.environ.get("NO_COLOR"))
    colors: Literal["auto"] | None = None if plain else "auto"
    return Console(
        stderr=stderr, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, color_system=colors,
    )  # fmt: skip


def discard_output() -> None:
    """Standard output is a pipe that was closed, as by `head`: send what is still to be written, at exit too, to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
