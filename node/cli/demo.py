"""`starling demo`: a swarm of real node processes on this machine, watched while it learns, summed up in a table.

Standard output is the table, or one JSON object. Progress goes to the terminal UI where a terminal is, else to standard error.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from starling.gossip.errors import ConfigError
from starling.node.cli import completion
from starling.node.cli.common import console, emit_plain, is_lively, json_option, preset_option
from starling.node.cli.help import Command, meant
from starling.node.cli.progress import Display, Terminal, on_stderr
from starling.node.config.schema import Manifest

if TYPE_CHECKING:
    from starling.node.demo.swarm import Demo, Plan

ROUNDS = 400  # some fifteen seconds: long enough for a killed node to be missed, restarted and at par again
LOOPBACK = ("membership.probe_s=0.5", "membership.timeout_s=0.25", "membership.suspicion_s=1.0")  # no link here is slow
PATH_TASKS = ("images", "text")  # they learn from files
GROUP = re.compile(r"(?P<count>\d{1,6}):(?P<attack>\w+)")
SHARE = re.compile(r"(?P<node>\d{1,6})@(?P<fraction>\d*\.?\d+)")
HELP = "see `starling demo --help`"


@click.command(
    cls=Command,
    examples=(
        ("starling demo", "eight nodes, shown live"),
        ("starling demo --nodes 4 --kill 2@0.3 --join-late 0.4", "one is killed and comes back, one comes late"),
        ("starling demo --nodes 8 --preset open --byzantine 1:sign_flip", "strangers, one of them Byzantine"),
        ("starling demo --nodes 4 --rounds 60 --json", "one JSON object, for a program"),
    ),
)
@click.option("--nodes", type=int, default=8, show_default=True, help="How many nodes, at least 2.")
@click.option(
    "--task",
    default="digits",
    show_default=True,
    help="A built-in task or module:function.",
    shell_complete=completion.tasks,
)
@click.option("--rounds", type=int, help=f"Length of the run in rounds; default: {ROUNDS}.")
@click.option("--seconds", type=float, help="Length of the run in seconds instead.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of all shared chance.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any key of `starling config show manifest`.",
    shell_complete=completion.keys("manifest"),
)  # fmt: skip
@click.option(
    "--kill", "kills", multiple=True, metavar="I@FRACTION", help="Kill node I at this fraction of the run; it restarts."
)
@click.option(
    "--byzantine", "liars", multiple=True, metavar="N:ATTACK",
    help="The last N nodes are Byzantine, e.g. 3:sign_flip (docs/attacks.md); more than once for several attacks.",
    shell_complete=completion.attacks,
)  # fmt: skip
@click.option(
    "--ban-at", type=float, metavar="FRACTION",
    help="The owners of all other nodes ban the Byzantine ones at this fraction of the run, as `starling ban` does.",
)  # fmt: skip
@preset_option
@click.option("--join-late", type=float, metavar="FRACTION", help="One more node joins at this fraction of the run.")
@json_option
@click.option(
    "--dir", "folder", metavar="DIR", type=click.Path(path_type=Path), help="Keep the nodes' directories here."
)
@click.option("--record", is_flag=True, help="Every node writes a record.jsonl in --dir, which `starling tui` replays.")
@click.option("--no-tui", is_flag=True, help="A progress bar instead of the terminal UI.")
def demo(
    nodes: int, task: str, rounds: int | None, seconds: float | None, seed: int, assignments: tuple[str, ...],
    kills: tuple[str, ...], liars: tuple[str, ...], ban_at: float | None, preset: str | None, join_late: float | None, as_json: bool,
    folder: Path | None, record: bool, no_tui: bool,
) -> int:  # fmt: skip
    """Run a swarm of real nodes on loopback and watch it learn.

    Data are cut into as many parts as there are nodes, plus one with --join-late: compare such runs with each other only.
    With --byzantine the summary counts the honest nodes only, with --ban-at also as they stood just before it. With --preset the nodes
    are listed as members, so that none has to be invited or to prove work; --set admission.kind says otherwise.

    text is cut by_file unless --set partition says otherwise. quadratic, diagonal and logistic have one problem per node. images
    and text need --set task.params.path=PATH.
    """
    from starling.node.demo.swarm import Demo

    plan = make_plan(
        nodes, task, rounds, seconds, seed, assignments, kills, join_late, folder, preset=preset, liars=liars,
        ban_at=ban_at, record=record,
    )  # fmt: skip
    try:
        with _signals(), Demo(plan) as running:
            click.echo(f"starting {plan.nodes} nodes in {running.folder}", err=True)
            ui = not (as_json or no_tui) and sys.stdin.isatty() and is_lively(sys.stdout) and is_lively(sys.stderr)
            with _display(running, ui=ui) as display:
                table = running.run(display.show)
            failed = [
                (n, running.members[n])
                for n, row in enumerate(table["nodes"])
                if row["state"] == "failed" and not row["byzantine"]
            ]
            for number, member in failed:
                click.echo(f"starling: node {number} failed: {member.run_dir.last_words()}", err=True)
    except KeyboardInterrupt:
        click.echo("starling: interrupted, all nodes are gone", err=True)
        return 130
    if as_json:
        emit_plain(table)
    else:
        _print(table)
    if folder is not None:
        click.echo(f"kept in {folder}", err=True)
    return 1 if failed else 0


# --- what to run ------------------------------------------------------------------------------------------------


def make_plan(
    nodes: int, task: str, rounds: int | None, seconds: float | None, seed: int, assignments: Sequence[str], kills: Sequence[str],
    join_late: float | None, folder: Path | None, *, preset: str | None = None, liars: Sequence[str] = (), ban_at: float | None = None,
    record: bool = False,
) -> Plan:  # fmt: skip
    """The plan that the options ask for. What `--set` says goes before what is derived from other options.

    Raises:
        ConfigError: they cannot be had, or not together.
    """
    from starling.node.cli.config import check
    from starling.node.config import presets
    from starling.node.config.overlay import check_members
    from starling.node.demo.swarm import Plan
    from starling.node.simulate.schema import PER_NODE_TASKS

    if nodes < 2:
        raise ConfigError(f"--nodes: must be >= 2, got {nodes}; try `starling demo --nodes 2`")
    if rounds is not None and seconds is not None:
        raise ConfigError(
            f"--seconds: excludes --rounds, got {seconds:g} and {rounds}; try `starling demo --seconds {seconds:g}`"
        )
    if rounds is not None and rounds < 1:
        raise ConfigError(f"--rounds: must be >= 1, got {rounds}; for an open end try `starling demo --seconds 60`")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise ConfigError(f"--seconds: must be > 0, got {seconds:g}; try `starling demo --seconds 60`")
    if join_late is not None and not 0 < join_late < 1:
        raise ConfigError(
            f"--join-late: must be > 0 and < 1, a share of the run, got {join_late:g}; try `--join-late 0.5`"
        )
    if ban_at is not None and not 0 <= ban_at < 1:
        raise ConfigError(f"--ban-at: must be >= 0 and < 1, a share of the run, got {ban_at:g}; try `--ban-at 0.4`")
    if ban_at is not None and not liars:
        raise ConfigError(
            f"--ban-at: bans Byzantine nodes, and there are none; try `starling demo --byzantine 1:sign_flip --ban-at {ban_at:g}`"
        )
    if record and folder is None:
        raise ConfigError("--record: needs --dir, where the records stay; try `starling demo --record --dir my-demo`")
    planned = tuple(_kill(text, nodes) for text in kills)
    byzantine = _byzantine(liars, nodes)
    parts = nodes + (join_late is not None)
    wished = presets.load(Manifest, assignments=presets.asked(preset, (f"task={task}", *assignments)))
    kind = wished.task.kind
    derived = [f"task={task}", f"seed={seed}", f"pace.quorum={nodes}", f"partition.shards={parts}", *LOOPBACK]
    derived += [] if wished.preset == presets.CUSTOM else ["admission.kind=allow"]  # all of them are ours
    derived += ["partition=by_file"] if kind == "text" else []
    derived += [f"task.params.nodes={parts}"] if kind in PER_NODE_TASKS else []
    if seconds is None:
        derived.append(f"pace.rounds={rounds or ROUNDS}")
    else:
        derived += ["pace.rounds=0", "optimizer.schedule=constant"]  # an end by the clock gives no schedule to aim at
    manifest = presets.load(Manifest, assignments=presets.asked(preset, (*derived, *assignments)))
    _check(manifest, nodes, seconds)
    check(manifest)
    check_members(manifest, nodes)
    return Plan(
        manifest=manifest, nodes=nodes, seconds=seconds, kill=planned, join_late=join_late, byzantine=byzantine, ban_at=ban_at,
        folder=folder, record=record,
    )  # fmt: skip


def _byzantine(texts: Sequence[str], nodes: int) -> tuple[tuple[int, str], ...]:
    """Who lies how: the last nodes, in the order of the options."""
    from starling.robust.attacks.catalogue import ATTACKS

    attacks: list[str] = []
    for text in texts:
        match = GROUP.fullmatch(text.strip())
        if match is None or int(match["count"]) < 1:
            raise ConfigError(f"--byzantine: must look like 3:sign_flip, nodes and an attack, got {text!r}; {HELP}")
        if match["attack"] not in ATTACKS:
            hint = meant(match["attack"], ATTACKS, f"--byzantine {match['count']}:")
            raise ConfigError(
                f"--byzantine: no attack {match['attack']!r}{hint}; choose one of {', '.join(sorted(ATTACKS))}; see docs/attacks.md"
            )
        attacks += [match["attack"]] * int(match["count"])
    if len(attacks) > nodes - 2:
        raise ConfigError(
            f"--byzantine: must leave 2 honest nodes of {nodes}, got {len(attacks)} Byzantine; try `--nodes {len(attacks) + 2}`"
        )
    return tuple(enumerate(attacks, nodes - len(attacks)))


def _kill(text: str, nodes: int) -> tuple[int, float]:
    match = SHARE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--kill: must look like 2@0.4, a node and a share of the run, got {text!r}; {HELP}")
    node, fraction = int(match["node"]), float(match["fraction"])
    if node >= nodes:
        raise ConfigError(
            f"--kill: node must be in [0, {nodes}), got {text!r}; try `--kill {nodes - 1}@{match['fraction']}`"
        )
    if not 0 < fraction < 1:
        raise ConfigError(f"--kill: the share must be > 0 and < 1, got {text!r}; try `--kill {node}@0.4`")
    return node, fraction


def _check(manifest: Manifest, nodes: int, seconds: float | None) -> None:
    """What only a demo needs of a manifest."""
    pace = manifest.pace
    if pace.rounds == 0 and seconds is None:
        raise ConfigError("pace.rounds: 0 is endless, but a demo ends; try `starling demo --seconds 60`")
    if pace.rounds and seconds is not None:
        raise ConfigError(
            f"--seconds: excludes pace.rounds, got {seconds:g} and {pace.rounds}; drop `--set pace.rounds`"
        )
    if pace.quorum > nodes:
        raise ConfigError(f"pace.quorum: must be <= --nodes = {nodes}, got {pace.quorum}; try `--nodes {pace.quorum}`")
    path = manifest.task.params.get("path", "")
    if manifest.task.kind in PATH_TASKS and not path:
        raise ConfigError(
            f"task.params.path: {manifest.task.kind} learns from files, got none; try `--set task.params.path=PATH`"
        )
    if path and not Path(str(path)).expanduser().exists():
        raise ConfigError(f"task.params.path: {str(path)!r} does not exist; look with `ls {Path(str(path)).parent}`")


# --- showing it -------------------------------------------------------------------------------------------------


def _display(running: Demo, *, ui: bool) -> Display:
    if ui:
        return Terminal(running.folder)
    return on_stderr()


def _print(table: dict[str, Any]) -> None:
    """Nodes, then what it comes to."""
    from rich.table import Table
    from rich.text import Text

    from starling.node.status import format as show

    metric = table["metric"] or "value"
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("peer", "state"):
        shown.add_column(name, no_wrap=True)
    for name in ("rounds", "steps", metric.replace("_", " "), "sent", "received", "exchanges"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in table["nodes"]:
        notes = [
            row["state"],
            *(
                word
                for word, key in (("Byzantine", "byzantine"), ("resumed", "rejoined"), ("late", "joined_late"))
                if row.get(key)
            ),
        ]
        shown.add_row(
            show.short(row["peer"]),
            Text(", ".join(notes), style="" if row["state"] in {"done", "banned"} else "bold red"),
            show.count(row.get("rounds")),
            show.count(row.get("local_steps")),
            show.figure(row.get("value")),
            show.size(row.get("bytes_sent")),
            show.size(row.get("bytes_received")),
            show.count(row.get("exchanges", {}).get("committed")),
        )
    each, dense = table["bytes_per_exchange"], table["dense_bytes"]
    ban = table["ban"]
    before = (
        f"before the ban in round {show.count(ban['round'])}: mean {show.figure(ban['mean'])}, min {show.figure(ban['min'])}\n"
        if ban
        else ""
    )
    less = f", {dense / each:.1f} times less than dense" if each and dense else ""
    out = console()
    out.print(shown)
    out.print(
        Text(
            f"\n{metric}: mean {show.figure(table['mean'])}, min {show.figure(table['min'])}, max {show.figure(table['max'])}\n"
            f"{before}"
            f"consensus distance {show.small(table['consensus_distance'])}\n"
            f"{show.size(each)} a node and exchange{less} ({show.size(dense)})\n"
            f"{table['rounds']:,} rounds in {table['wall_s']:.1f} s"
        ),
        soft_wrap=True,
    )


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end the demo in order, as Ctrl-C does; a second Ctrl-C does not disturb the tidying up."""
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {each: signal.signal(each, stop) for each in ours}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
