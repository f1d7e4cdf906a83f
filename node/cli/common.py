"""Helpers of several commands: common options, requests to a running node, and output of results.

Standard output is data, standard error is for people. No color unless a terminal reads that wants it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import click
import msgspec

from starling.gossip.errors import ConfigError, GossipError
from starling.node import platform
from starling.node.cli import completion
from starling.node.versions import INSTALL_LIBP2P, LIBP2P

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

DEFAULT_DIR = Path("starling-node")
PATH = click.Path(path_type=Path)
PIPE_WIDTH = 200  # columns of a table that is not written to a terminal: wide enough that no line folds

Command = TypeVar("Command", bound=Callable[..., Any])
Document = TypeVar("Document", bound=msgspec.Struct)


def dir_option(command: Command) -> Command:
    """Add `[DIR]` as the last argument, or `--dir DIR`; given to the command as `run_dir: Path`."""

    @click.argument("directory", metavar="[DIR]", required=False, type=completion.RunDirectory())
    @click.option(
        "--dir",
        "run_dir",
        metavar="DIR",
        type=completion.RunDirectory(),
        help=f"The node's run directory; DIR as the last word does the same.  [default: {DEFAULT_DIR}]",
    )
    @wraps(command)
    def with_directory(*args: Any, directory: Path | None, run_dir: Path | None, **options: Any) -> Any:
        if directory is not None and run_dir is not None and directory != run_dir:
            raise click.UsageError(f"--dir {run_dir} and DIR {directory} are two directories; give one")
        return command(*args, run_dir=run_dir or directory or DEFAULT_DIR, **options)

    return with_directory  # type: ignore[return-value]  # same callback, one parameter more on the command line


preset_option = click.option(
    "--preset",
    metavar="vouched|open",
    shell_complete=completion.names("starling.node.config.presets:PRESETS"),
    help="Start from the values for known members, or for strangers; see docs/robustness.md.",
)
"""`--preset NAME`, given to the command as `preset: str | None`."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs; schemas are in docs/schemas.")
"""`--json`, given to the command as `as_json: bool`."""


def dir_and_json(command: Command) -> Command:
    """Add the directory and `--json` to a command that looks at a node."""
    return dir_option(json_option(command))


def set_option(*parts: str, help: str) -> Callable[[Command], Command]:
    """Return a decorator that adds `--set KEY=VALUE` for the keys of `parts` (manifest, node, scenario), given to the command as
    `assignments: tuple[str, ...]`.
    """
    return click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help=help, shell_complete=completion.keys(*parts))


def file_option(*names: str, help: str) -> Callable[[Command], Command]:
    """Return a decorator that adds an option that names a file."""
    return click.option(*names, metavar="FILE", type=PATH, help=help)


force_option = click.option("--force", is_flag=True, help="Replace files that exist.")
"""`--force`, given to the command as `force: bool`."""


def refuse_existing(option: str, path: Path | None, *, force: bool, folder: bool = False) -> None:
    """Raise ConfigError for a file, or `folder`, that `option` would replace, unless the person asked for that with `force`."""
    if path is not None and path.exists() and (path.is_dir() != folder or not force):
        replaced = "" if path.is_dir() != folder else ", or replace it with `--force`"
        raise ConfigError(f"{option}: {path} exists; name another file{replaced}")


def say(text: str) -> None:
    """Print a line for people, on standard error."""
    click.echo(text, err=True)


def result(document: Document, as_json: bool, for_people: Callable[[Document], object]) -> None:
    """Print what a command found: as JSON, or by `for_people`."""
    emit(document) if as_json else for_people(document)


def emit(document: msgspec.Struct) -> None:
    """Print a JSON document on one line and flush it: a program may wait for it. Numbers that are not finite become null."""
    click.echo(msgspec.json.encode(document))


def emit_plain(fields: Mapping[str, object]) -> None:
    """Print plain data, such as a node's answer, as one JSON object with its version."""
    click.echo(msgspec.json.encode({"version": 1, **fields}))


def check_network() -> None:
    """Raise GossipError where libp2p is not installed, which `pip install starling-swarm` leaves out, or another version is."""
    from importlib import metadata  # importing it takes a while, and few commands need it

    try:
        version = metadata.version("libp2p")
    except metadata.PackageNotFoundError:
        raise GossipError(f"libp2p is missing, which the network needs; try `{INSTALL_LIBP2P}`") from None
    if version != LIBP2P:
        raise GossipError(f"libp2p is {version}, this version of Starling needs {LIBP2P}; try `{INSTALL_LIBP2P}`")


def is_lively(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which lines can be overwritten and color may be used."""
    return stream.isatty() and os.environ.get("TERM", "") not in {"dumb", "unknown"}


def console(*, stderr: bool = False) -> Console:
    """Return the console for tables: as wide as the terminal; without a terminal, wide enough for whole lines.

    Plain text in a pipe, on a dumb terminal and where NO_COLOR is set (https://no-color.org).
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    plain = not is_lively(stream) or bool(os.environ.get("NO_COLOR"))
    colors: Literal["auto"] | None = None if plain else "auto"
    return Console(stderr=stderr, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, color_system=colors)


def table(columns: Iterable[str], rows: Iterable[Sequence[str | Text]], *, fold: bool = False) -> Table:
    """Return a table without rules; strings are printed as they are.

    A column is aligned to the right if ">" comes before its heading. `fold`: long headings and cells are continued on the next line, but
    for those of the first column.
    """
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for number, name in enumerate(columns):
        shown.add_column(
            name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold", no_wrap=not (fold and number)
        )
    for row in rows:
        shown.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return shown


def listing(rows: Mapping[str, str]) -> Table:
    """Return a table with a name and its value on each line."""
    from rich.table import Table
    from rich.text import Text

    shown = Table.grid(padding=(0, 2))
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, text in rows.items():
        shown.add_row(Text(name), Text(text))
    return shown


def discard_output() -> None:
    """Redirect standard output to /dev/null, at exit too: it is a pipe whose reader, such as `head`, has closed it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def cores_there() -> int:
    """Return the number of cores that this process may use."""
    return len(platform.usable_cores())
