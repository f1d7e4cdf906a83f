"""`starling eval` and `starling export`: the model of a running node, or the one that a finished or stopped node left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli.common import asking, dir_option, emit_plain, json_option, last_run, say
from starling.node.cli.help import Command
from starling.node.cli.progress import Slow
from starling.node.cli.run import existing
from starling.node.status import control
from starling.node.status.control import typed
from starling.node.storage.run_dir import RunDir

SUFFIX = ".safetensors"
WRONG_INPUT = 2


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
        answer = _evaluated(run_dir) if measured is None else _evaluated_on(run_dir, measured)
    if as_json:
        emit_plain(answer)
        return
    value = answer.get("value")
    if not isinstance(value, float | int):
        raise GossipError(f"the node in {run_dir} has not evaluated its model yet; try again")
    click.echo(f"{answer.get('metric') or 'value'} {value:.6g} in round {answer.get('round')}")


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
        _export(run_dir, target)
    size = target.stat().st_size
    if as_json:
        emit_plain({"file": str(target), "bytes": size})
    else:
        say(f"wrote {target} ({size:,} bytes)")


def _evaluated(run_dir: Path) -> dict[str, Any]:
    """metric, value and round: asked of the running node, read from final.json, or measured from what the directory holds."""
    try:
        return control.request(run_dir, "evaluate")
    except control.NotRunning as error:
        RunDir.existing(run_dir)
        last = last_run(run_dir)
        if last is not None and last.snapshot.value is not None and last.snapshot.value_round == last.snapshot.round:
            return {"metric": last.snapshot.metric, "value": last.snapshot.value, "round": last.snapshot.value_round}
        if not _has_model(run_dir):
            raise error from None
        return _evaluated_on(run_dir, None)


def _evaluated_on(run_dir: Path, data: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / f"model{SUFFIX}"
        _export(run_dir, model)
        words = ["evaluate", str(run_dir), str(model)] + ([] if data is None else [str(data)])
        answer: dict[str, Any] = json.loads(_offline(*words))
        return answer


def _export(run_dir: Path, target: Path) -> None:
    """Have the node write its model; where none runs copy the one left behind, or make one from the checkpoint."""
    try:
        with asking(run_dir):
            control.request(run_dir, "export", path=str(target))
    except control.NotRunning:
        place = RunDir(run_dir)
        if not _has_model(run_dir):
            raise
        last = last_run(run_dir)
        finished = last is not None and last.ended == "finished"
        if place.model.exists() and (finished or not place.checkpoint.exists()):
            _copy(place.model, target)
        else:
            _offline("export", str(run_dir), str(target))


def _has_model(run_dir: Path) -> bool:
    place = RunDir(run_dir)
    return place.model.exists() or place.checkpoint.exists()


def _offline(*words: str) -> str:
    """Standard output of the program that loads models: torch is imported there, not here.

    Raises:
        ConfigError: it says what is wrong with the model or the data.
        GossipError: it failed otherwise.
    """
    command = [sys.executable, "-m", "starling.node.engine.offline", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    if done.returncode == WRONG_INPUT:
        raise ConfigError(last)
    if done.returncode:
        raise GossipError(f"the model could not be loaded: {last}")
    return done.stdout


def _copy(source: Path, target: Path) -> None:
    """Under another name first: a full disk leaves no half model."""
    part = target.with_name(target.name + ".part")
    try:
        shutil.copyfile(source, part)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise GossipError(f"export: cannot write {target}: {error.strerror}; name another file") from error
