"""`starling eval` and `starling export`: the model of a running node, or the one that a finished or stopped node left behind."""

from __future__ import annotations

from pathlib import Path

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.attach import Attached
from starling.node.cli.common import dir_option, emit, json_option, say
from starling.node.cli.documents import Evaluation, Exported
from starling.node.cli.help import Command
from starling.node.cli.progress import Slow
from starling.node.cli.run import existing
from starling.node.status.control import typed

SUFFIX = ".safetensors"


@click.command(
    "eval",
    cls=Command,
    examples=(
        ("starling eval --dir starling-2 --json", ""),
        ("starling eval --dir starling-2 --data my-test.npz", "on your own test data"),
    ),
)
@click.option(
    "--data",
    metavar="PATH",
    help="Evaluate on this: its test split, or all of an .npz file that has none. Default: held-out data.",
)
@dir_option
@json_option
def evaluate(data: str | None, run_dir: Path, as_json: bool) -> None:
    """Evaluate the model of a running, finished or stopped node."""
    measured = None if data is None else existing("--data", data)
    with Slow("evaluating"):
        found = Attached(run_dir).evaluate(measured)
    if as_json:
        emit(Evaluation(metric=found.metric, value=found.value, round=found.round))
        return
    if found.value is None:
        raise GossipError(f"the node in {run_dir} has not evaluated its model yet; try again")
    click.echo(f"{found.metric or 'value'} {found.value:.6g} in round {found.round}")


@click.command(
    cls=Command,
    examples=(
        ("starling export mine.safetensors --dir starling-2", ""),
        ("starling export mine.safetensors --dir starling-2 --force", "replace an older one"),
    ),
)
@click.argument("file", metavar="FILE.safetensors", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@dir_option
@json_option
def export(file: Path, force: bool, run_dir: Path, as_json: bool) -> None:
    """Write the model of a running, finished or stopped node to a safetensors file."""
    target = file.expanduser().resolve()
    if target.suffix != SUFFIX:
        raise ConfigError(
            f"export: {str(file)!r} must end in {SUFFIX}; try `starling export {typed(file.with_suffix(SUFFIX))}`"
        )
    if not target.parent.is_dir():
        raise ConfigError(f"export: {target.parent} is not a folder; try `mkdir -p {typed(target.parent)}`")
    if target.is_dir() or (target.exists() and not force):
        raise ConfigError(
            f"export: {file} exists; name another file, or replace it with `starling export {typed(file)} --force`"
        )
    with Slow(f"writing {target.name}"):
        Attached(run_dir).export(target)
    size = target.stat().st_size
    if as_json:
        emit(Exported(file=str(target), bytes=size))
    else:
        say(f"wrote {target} ({size:,} bytes)")
