"""`starling demo`: a swarm of real node processes on this machine, watched while it learns, summed up in a table.

Standard output is the table, or one JSON object. Progress goes to the terminal UI if there is a terminal, else to standard error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET

from starling.gossip.errors import ConfigError
from starling.node.cli import completion
from starling.node.cli.common import PATH, check_network, console, is_lively, json_option, preset_option, result, say, set_option, table
from starling.node.cli.exit_codes import INTERRUPTED
from starling.node.cli.help import command, meant
from starling.node.cli.progress import Terminal, on_stderr
from starling.node.cli.signals import ended_by_signals
from starling.node.config.schema import Manifest

if TYPE_CHECKING:
    from starling.node.demo.summary import DemoNode, DemoSummary
    from starling.node.demo.swarm import Plan

ROUNDS = 400  # about fifteen seconds: enough for a killed node to be missed, restarted and level again
EARLY = "pace.evaluate_every=10"  # a newcomer waits for the comparison of the lone node's accuracy with the swarm's
LOOPBACK = ("membership.probe_s=0.5", "membership.timeout_s=0.25", "membership.suspicion_s=1.0")  # links on one machine are fast
NEXT = """
next:
  starling demo --kill 2@0.3 --join-late 0.4   one node is killed and comes back, one joins late
  starling create --example digits              a swarm of your own, whose invite others join by
  starling examples                            your own model, text, strangers: files to begin with"""
ALONE = ("overlay=alone", "pace.quorum=1", "crew.stages=1", "name=alone")
GROUP = re.compile(r"(?P<count>\d{1,6}):(?P<attack>\w+)")
SHARE = re.compile(r"(?P<node>\d{1,6})@(?P<fraction>\d*\.?\d+)")
HELP = "see `starling demo --help`"


@command(
    ("starling demo", "eight nodes, shown live"),
    ("starling demo --nodes 4 --kill 2@0.3 --join-late 0.4", "one is killed and comes back, one comes late"),
    ("starling demo --nodes 8 --preset open --byzantine 1:sign_flip", "strangers, one of them Byzantine"),
    ("starling demo --nodes 4 --rounds 60 --json", "one JSON object, for a program"),
)
@click.option("--nodes", type=int, default=8, help="How many nodes, at least 2.")
@click.option(
    "--task",
    default="digits",
    help="A built-in task or module:function.",
    shell_complete=completion.names("starling.node.catalogues:TASKS", but=("script",)),
)
@click.option("--rounds", type=int, help=f"Length of the run in rounds; default: {ROUNDS}.")
@click.option("--seconds", type=float, help="Length of the run in seconds instead.")
@click.option("--seed", type=int, default=0, help="Of all shared random numbers.")
@set_option("manifest", help="Any key of `starling config show manifest`.")
@click.option("--kill", "kills", multiple=True, metavar="I@FRACTION", help="Kill node I at this fraction of the run; it restarts.")
@click.option(
    "--byzantine",
    multiple=True,
    metavar="N:ATTACK",
    shell_complete=completion.attacks,
    help="The last N nodes are Byzantine, e.g. 3:sign_flip (docs/attacks.md); more than once for several attacks.",
)
@click.option(
    "--ban-at",
    type=float,
    metavar="FRACTION",
    help="The owners of all other nodes ban the Byzantine ones at this fraction of the run, as `starling ban` does.",
)
@preset_option
@click.option(
    "--alone/--no-alone",
    default=None,
    help="One more node trains on the data of node 0 and exchanges with nobody.  [default: unless --json, --preset or --byzantine]",
)
@click.option("--join-late", type=float, metavar="FRACTION", help="One more node joins at this fraction of the run.")
@json_option
@click.option("--dir", "folder", metavar="DIR", type=PATH, help="Keep the nodes' directories here.")
@click.option("--record", is_flag=True, help="Every node writes a record.jsonl in --dir, which `starling tui` replays.")
@click.option("--no-tui", is_flag=True, help="A progress bar instead of the terminal UI.")
def demo(as_json: bool, no_tui: bool, **options: Any) -> int:
    """Run a swarm of real nodes on loopback and watch it learn.

    Data are cut into as many parts as there are nodes, plus one with --join-late: compare such runs with each other only.
    With --byzantine the summary counts the honest nodes only, with --ban-at also as they stood just before it. With --preset the nodes
    are listed as members, so that none has to be invited or to prove work; --set admission.kind says otherwise.

    text is cut by_file unless --set partition says otherwise. quadratic, diagonal and logistic have one problem per node. images
    and text need --set task.path=PATH.
    """
    from starling.node.demo.swarm import Demo
    from starling.node.storage.run_dir import RunDir

    check_network()
    if options["alone"] is None and as_json:
        options["alone"] = False
    plan = make_plan(**options)
    failed: dict[int, str] = {}
    try:
        with ended_by_signals(), Demo(plan) as running:
            say(f"starting {plan.nodes} nodes in {running.folder}")
            ui = not (as_json or no_tui) and sys.stdin.isatty() and is_lively(sys.stdout) and is_lively(sys.stderr)
            with Terminal(running.folder) if ui else on_stderr() as display:
                summary = running.run(display.show)
            for number, row in enumerate(summary.nodes):
                if row.state == "failed" and not row.byzantine:
                    failed[number] = RunDir(running.members[number].run_dir).last_words()
    except KeyboardInterrupt:
        say("starling: interrupted, all nodes are gone")
        return INTERRUPTED
    for number, words in failed.items():
        say(f"starling: node {number} failed: {words}")
    result(summary, as_json, _print)
    if plan.folder is not None:
        say(f"kept in {plan.folder}")
    return 1 if failed else 0


def make_plan(
    *,
    nodes: int = 8,
    task: str = "digits",
    rounds: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    assignments: Sequence[str] = (),
    kills: Sequence[str] = (),
    byzantine: Sequence[str] = (),
    ban_at: float | None = None,
    preset: str | None = None,
    join_late: float | None = None,
    folder: Path | None = None,
    record: bool = False,
    alone: bool | None = False,
) -> Plan:
    """Return the plan that the command's options describe. `--set` overrides what is derived from other options.

    `alone` None: with a node alone, where that is worth seeing and the manifest allows it.

    Raises ConfigError: a value is out of bounds, or two exclude each other.
    """
    from starling.node.cli.config import check
    from starling.node.config import presets
    from starling.node.config.overlay import check_members
    from starling.node.demo.swarm import Plan
    from starling.node.simulate.schema import PER_NODE_TASKS

    if nodes < 2:
        raise ConfigError(f"--nodes: must be >= 2, got {nodes}; try `starling demo --nodes 2`")
    length = _length(rounds, seconds)
    if join_late is not None and not 0 < join_late < 1:
        raise ConfigError(f"--join-late: must be > 0 and < 1, a share of the run, got {join_late:g}; try `--join-late 0.5`")
    if ban_at is not None and not 0 <= ban_at < 1:
        raise ConfigError(f"--ban-at: must be >= 0 and < 1, a share of the run, got {ban_at:g}; try `--ban-at 0.4`")
    if ban_at is not None and not byzantine:
        raise ConfigError(
            f"--ban-at: bans Byzantine nodes, and there are none; try `starling demo --byzantine 1:sign_flip --ban-at {ban_at:g}`"
        )
    if record and folder is None:
        raise ConfigError("--record: needs --dir, where the records stay; try `starling demo --record --dir my-demo`")
    kill = tuple(_kill(text, nodes) for text in kills)
    attackers = _byzantine(byzantine, nodes)
    wished = presets.load(Manifest, assignments=presets.asked(preset, (f"task={task}", *assignments)))
    stages = wished.crew.stages
    if nodes < stages:
        raise ConfigError(f"--nodes: must be >= crew.stages = {stages}, got {nodes}; try `--nodes {2 * stages}`")
    crews = nodes // stages
    parts = crews + (join_late is not None and stages == 1)
    kind = wished.task.kind
    derived = [f"task={task}", f"seed={seed}", f"pace.quorum={crews}", f"partition.shards={parts}", EARLY, *LOOPBACK]
    derived += [] if wished.preset == presets.CUSTOM else ["admission.kind=allow"]  # all nodes belong to this demo
    derived += ["partition=by_file"] if kind == "text" else []
    derived += [f"task.nodes={parts}"] if kind in PER_NODE_TASKS else []
    derived += length
    manifest = presets.load(Manifest, assignments=presets.asked(preset, (*derived, *assignments)))
    _check_manifest(manifest, nodes, seconds)
    check(manifest)
    check_members(manifest, nodes)
    lone = None
    if alone or (alone is None and manifest.preset == presets.CUSTOM and not attackers):
        lone = _lone(presets.asked(preset, (*derived, *assignments, *ALONE)), required=alone is True)
    return Plan(
        manifest=manifest,
        nodes=nodes,
        seconds=seconds,
        kill=kill,
        join_late=join_late,
        byzantine=attackers,
        ban_at=ban_at,
        folder=folder,
        record=record,
        alone=lone,
    )


def _length(rounds: int | None, seconds: float | None) -> list[str]:
    """Return the settings of a run's length. Raises ConfigError: it has none."""
    if rounds is not None and seconds is not None:
        raise ConfigError(f"--seconds: excludes --rounds, got {seconds:g} and {rounds}; try `starling demo --seconds {seconds:g}`")
    if rounds is not None and rounds < 1:
        raise ConfigError(f"--rounds: must be >= 1, got {rounds}; for an open end try `starling demo --seconds 60`")
    if seconds is None:
        return [f"pace.rounds={rounds or ROUNDS}"]
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--seconds: must be > 0, got {seconds:g}; try `starling demo --seconds 60`")
    return ["pace.rounds=0", "optimizer.schedule=constant"]  # a demo that ends by the clock has no last round for a schedule


def _lone(assignments: tuple[str, ...], *, required: bool) -> Manifest | None:
    """Return the manifest of the node alone; None: not for this swarm. Raises ConfigError: it was requested."""
    from starling.node.cli.config import check
    from starling.node.config import presets

    try:
        lone = presets.load(Manifest, assignments=assignments)
        check(lone)
    except ConfigError as error:
        if required:
            raise ConfigError(f"--alone: {error}, or leave --alone out") from error
        return None
    return lone


def _byzantine(texts: Sequence[str], nodes: int) -> tuple[tuple[int, str], ...]:
    """Return (node, attack) of the last nodes, in the order of the options."""
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
        raise ConfigError(f"--kill: node must be in [0, {nodes}), got {text!r}; try `--kill {nodes - 1}@{match['fraction']}`")
    if not 0 < fraction < 1:
        raise ConfigError(f"--kill: the share must be > 0 and < 1, got {text!r}; try `--kill {node}@0.4`")
    return node, fraction


def _check_manifest(manifest: Manifest, nodes: int, seconds: float | None) -> None:
    """Check the rules that only a demo has for a manifest. Raises ConfigError: one is broken."""
    from starling.node.config import script
    from starling.node.simulate.rules import check_files

    if script.trains(manifest):
        raise script.refused("--task", "a demo needs a task of its own, try `starling demo --task digits`")
    pace = manifest.pace
    if pace.rounds == 0 and seconds is None:
        raise ConfigError("pace.rounds: 0 is endless, but a demo ends; try `starling demo --seconds 60`")
    if pace.rounds and seconds is not None:
        raise ConfigError(f"--seconds: excludes pace.rounds, got {seconds:g} and {pace.rounds}; drop `--set pace.rounds`")
    stages = manifest.crew.stages
    if pace.quorum > nodes // stages:
        most = f"--nodes = {nodes}" if stages == 1 else f"{nodes // stages}, the crews of {nodes} nodes"
        raise ConfigError(f"pace.quorum: must be <= {most}, got {pace.quorum}; try `--nodes {pace.quorum * stages}`")
    check_files(manifest.task)


def _print(summary: DemoSummary) -> None:
    """Print the nodes, then the figures of the whole."""
    from rich.text import Text

    from starling.node.status import format as show

    metric, each, dense = summary.metric or "value", summary.bytes_per_exchange, summary.dense_bytes
    columns = ("peer", "state", ">rounds", ">steps", f">{show.metric(metric)}", ">sent", ">received", ">exchanges")
    before = ""
    if (ban := summary.ban) is not None:
        before = f"before the ban in round {show.count(ban.round)}: mean {show.figure(ban.mean)}, min {show.figure(ban.min)}\n"
    less = f", {dense / each:.1f} times less than dense" if each and dense else ""
    figures = Text(
        f"\n{metric}: mean {show.figure(summary.mean)}, min {show.figure(summary.min)}, max {show.figure(summary.max)}\n"
        f"{before}"
        f"consensus distance {show.small(summary.consensus_distance)}\n"
        f"{show.size(each)} a node and exchange{less} ({show.size(dense)})\n"
        f"{summary.rounds:,} rounds in {summary.wall_s:.1f} s"
    )
    out = console()
    out.print(table(columns, map(_row, summary.nodes)))
    out.print(figures, soft_wrap=True)
    if (alone := summary.alone) is not None and alone.value is not None:
        first = summary.nodes[0]
        out.print(
            Text(
                f"\nnode 0's data, {show.count(alone.local_steps)} local steps alone: {metric} {show.figure(alone.value)}; "
                f"in the swarm: {show.figure(None if first.value is UNSET else first.value)}",
                style="bold",
            ),
            soft_wrap=True,
        )
    out.print(Text(NEXT), soft_wrap=True)


def _row(node: DemoNode) -> list[str | Any]:
    from rich.text import Text

    from starling.node.status import format as show

    marks = {"Byzantine": node.byzantine, "resumed": node.rejoined, "late": node.joined_late}
    notes = ", ".join([node.state, *(mark for mark, given in marks.items() if given)])
    row = [show.short(node.peer), Text(notes, style="" if node.state in {"done", "banned"} else "bold red")]
    if node.rounds is UNSET:
        return [*row, *[show.MISSING] * 6]
    figures: Any = node
    return [
        *row,
        show.count(figures.rounds),
        show.count(figures.local_steps),
        show.figure(figures.value),
        show.size(figures.bytes_sent),
        show.size(figures.bytes_received),
        show.count(figures.exchanges.committed),
    ]
