"""`starling status`, `peers` and `tui`: look at a running node, or at what an ended one left behind; change nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from starling.node.cli.common import (
    DEFAULT_DIR,
    console,
    dir_option,
    discard_output,
    emit,
    is_lively,
    json_option,
)
from starling.node.cli.completion import Watchable
from starling.node.cli.documents import Peers
from starling.node.cli.help import Command
from starling.node.status import control
from starling.node.status import format as show
from starling.node.status.control import typed
from starling.node.status.final import FinalStatus
from starling.node.status.snapshot import PeerStatus, Resources, StatusSnapshot, encode

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

WIDE = 190  # columns from which a peer id is shown in full
WIDE_ENOUGH = 136  # columns from which it is shown how peers behave
ATTACH_S = 1.0  # between attempts to reach a node that is gone
INVITED_TOO = 148  # columns from which it is shown as well who invited them


@click.command(
    cls=Command,
    examples=(
        ("starling status --dir starling-2", ""),
        ("starling status --watch", "again every second, until Ctrl-C"),
        ("starling status --json", "everything it says of itself, for a program"),
    ),
)
@click.option(
    "--watch", is_flag=True, help="Go on until Ctrl-C, through a restart of the node too; with --json a line each time."
)
@dir_option
@json_option
def status(watch: bool, run_dir: Path, as_json: bool) -> None:
    """Show the state of a running node, or how an ended one ended.

    A problem, if there is one, is the first line, with the next command to try.
    """
    snapshot, ended = _snapshot(run_dir)
    if watch:
        _watch(run_dir, as_json)
    elif as_json:
        click.echo(encode(snapshot), nl=False)
    else:
        out = console()
        _print_first(out, snapshot, ended, run_dir)
        out.print(_status_table(snapshot))


@click.command(
    cls=Command,
    examples=(
        ("starling peers --dir starling-2", ""),
        ("starling peers --json", "whole ids and everything known of each, for a program"),
    ),
)
@dir_option
@json_option
def peers(run_dir: Path, as_json: bool) -> None:
    """List the members a node knows, those it exchanges with first.

    In a swarm of invited members with who invited them: `starling revoke PEER` removes a member and all below it.
    """
    snapshot, ended = _snapshot(run_dir)
    if as_json:
        emit(Peers(peer=snapshot.peer, swarm=snapshot.swarm, peers=snapshot.peers))
        return
    out = console()
    _print_first(out, snapshot, ended, run_dir)
    invited = out.width >= INVITED_TOO and any(peer.inviter for peer in snapshot.peers)
    full, standing = out.width >= WIDE, out.width >= WIDE_ENOUGH
    out.print(_peer_table(snapshot.peers, full=full, standing=standing, invited=invited))
    _print_reasons(out, snapshot)


@click.command(
    "tui",
    cls=Command,
    examples=(
        ("starling tui starling-2", "a running node"),
        ("starling tui starling-1 starling-2", "two, one beside the other"),
        ("starling tui starling-2/record.jsonl", "a recorded run"),
    ),
)
@click.argument("paths", metavar="[DIR|RECORD.jsonl]…", nargs=-1, type=Watchable())
def terminal(paths: tuple[Path, ...]) -> int:
    """Watch running nodes, a demo or a recorded run in the terminal.

    DIR is a run directory or a demo's folder (default: starling-node). Waits for a node that is not running yet.
    """
    shown = paths or (DEFAULT_DIR,)
    if not sys.stdin.isatty() or not is_lively(sys.stdout):
        raise click.UsageError(f"the terminal UI needs a terminal; try `starling status --dir {typed(shown[0])}`")
    for path in shown:
        if path.suffix == ".jsonl" and not path.exists():
            raise click.UsageError(f"{path} is not there; a node with `--set record.every_s=1` writes one")
    # A process of its own: it has an event loop, and may be killed at any time.
    return subprocess.run([sys.executable, "-m", "starling.tui", *map(str, shown)], check=False).returncode


def _snapshot(run_dir: Path) -> tuple[StatusSnapshot, FinalStatus | None]:
    """The node's status, and how its last run ended if it does not run.

    Raises:
        ConfigError: the directory has never held a node.
        ControlError: its node does not answer, or was killed and left no status.
    """
    from starling.node.attach import Attached

    node = Attached(run_dir)
    snapshot = node.status()
    return snapshot, None if node.running else node.last


def _watch(run_dir: Path, as_json: bool) -> None:
    """Snapshots as they come, until Ctrl-C; on a terminal each in the place of the one before."""
    from rich.live import Live

    out = console()
    try:
        if as_json:
            for seen in _seen(run_dir):
                if isinstance(seen, StatusSnapshot):
                    click.echo(encode(seen), nl=False)
        elif is_lively(sys.stdout):
            with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
                for seen in _seen(run_dir):
                    live.update(_whole(seen, run_dir), refresh=True)
        else:
            for seen in _seen(run_dir):
                out.print(_whole(seen, run_dir))
                out.print()
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # `| head`
        discard_output()


def _seen(run_dir: Path) -> Iterator[StatusSnapshot | control.ControlError]:
    """Snapshots without end; once for each time the node cannot be asked, why not."""
    said = ""
    while True:
        try:
            for snapshot in control.watch(run_dir):
                said = ""
                yield snapshot
        except control.ControlError as error:
            if str(error) != said:
                said = str(error)
                yield error
        time.sleep(ATTACH_S)


def _whole(seen: StatusSnapshot | control.ControlError, run_dir: Path) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if isinstance(seen, control.ControlError):
        return Text(f"! {show.clean(str(seen))}", style="bold red")
    problem = _problem(seen, run_dir)
    return Group(*([] if problem is None else [problem]), _status_table(seen))


def _print_first(out: Console, snapshot: StatusSnapshot, ended: FinalStatus | None, run_dir: Path) -> None:
    """How the last run ended, or the problem of a running node, if it has one."""
    from rich.text import Text

    first = _problem(snapshot, run_dir) if ended is None else Text(_ended(ended, run_dir), style="bold")
    if first is not None:
        out.print(first, soft_wrap=True)


def _ended(last: FinalStatus, run_dir: Path) -> str:
    """`finished: 100 rounds, accuracy 0.956; model in …`."""
    snapshot = last.snapshot
    value = (
        "" if snapshot.value is None else f", {show.metric(snapshot.metric) or 'value'} {show.figure(snapshot.value)}"
    )
    rounds = f"{show.count(snapshot.round)} rounds{value}"
    model = f"; model in {run_dir / last.model}" if last.model else ""
    match last.ended:
        case "finished":
            return f"finished: {rounds}{model}"
        case "left":
            return f"left after {rounds}{model}; continue with `starling run --dir {typed(run_dir)}`"
        case _:
            return f"! failed after {rounds}: {show.clean(last.reason)}; see `starling logs --dir {typed(run_dir)}`"


def _problem(snapshot: StatusSnapshot, run_dir: Path) -> Text | None:
    """The line that comes first, with the next command to try: the node's own suggestion, else `invite` or `logs`."""
    from rich.text import Text

    if snapshot.problem is None:
        return None
    said = show.clean(snapshot.problem)
    if "`" not in said:
        alone = snapshot.members == 1
        command = "invite" if alone else "logs"
        said += f"; {'hand on' if alone else 'see'} `starling {command} --dir {typed(run_dir)}`"
    return Text(f"! {said}", style="bold red")


def _print_reasons(out: Console, snapshot: StatusSnapshot) -> None:
    from rich.text import Text

    for peer in snapshot.peers:
        if peer.why:
            out.print(Text(f"{show.short(peer.peer)} {peer.state}: {show.clean(peer.why)}"), soft_wrap=True)


def _status_table(snapshot: StatusSnapshot) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    value_round = f" (round {show.count(snapshot.value_round)})" if snapshot.value_round is not None else ""
    alive = sum(peer.edge for peer in snapshot.peers)
    rows = {
        "state": snapshot.state
        + (", resumed" if snapshot.rejoined else "")
        + (", joined late" if snapshot.joined_late else "")
        + (f", {snapshot.activity}" if snapshot.activity else ""),
        "swarm": f"{snapshot.name} ({snapshot.swarm})",
        "peer": snapshot.peer,
        "round": show.rounds(snapshot.round, snapshot.rounds),
        show.metric(snapshot.metric) or "value": show.figure(snapshot.value) + value_round,
        "loss": show.figure(snapshot.loss),
        "members": f"{snapshot.members:,}, {alive:,} with an edge",
        "exchanges": show.ended(snapshot.exchanges),
        "distance": _distance(snapshot),
        "sent": _traffic(snapshot.bytes_sent, snapshot.up_bytes_per_s, snapshot.up_limit_bytes_per_s),
        "received": _traffic(snapshot.bytes_received, snapshot.down_bytes_per_s, snapshot.down_limit_bytes_per_s),
        "payload": show.size(snapshot.payload_bytes),
        "transfers": "; ".join(
            f"{each.kind} with {show.short(each.peer)}: {show.progress(each)}" for each in snapshot.transfers
        ),
        "local steps": f"{show.count(snapshot.local_steps)} ({_pace(snapshot)})",
        "machine": _costs(snapshot.resources),
        "task": snapshot.task or show.MISSING,
        "algorithm": f"{snapshot.algorithm or show.MISSING} on {snapshot.overlay or show.MISSING}",
        "parameters": show.count(snapshot.parameters),
        "device": snapshot.device or show.MISSING,
        "engine": f"{snapshot.engine_restarts} restarts",
        "up": show.duration(snapshot.uptime_s),
        "addresses": ", ".join(snapshot.addresses) or show.MISSING,
    }
    for name in ("distance", "machine", "transfers"):  # a node that does not tell
        if not rows[name]:
            del rows[name]
    if snapshot.delta is not None:
        rows["privacy"] = f"ε {show.privacy(snapshot.epsilon, snapshot.delta)}"
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(Text(show.clean(name)), Text(show.clean(text)))
    return table


def _traffic(total: int, per_s: float | None, cap_per_s: int | None) -> str:
    cap = "" if cap_per_s is None else f" of at most {show.rate(cap_per_s)}"
    return f"{show.size(total)} ({show.rate(per_s)}{cap})"


def _pace(snapshot: StatusSnapshot) -> str:
    """Alone, and with the waiting that a swarm costs."""
    alone = show.speed(snapshot.steps_per_s)
    return (
        alone if snapshot.paced_per_s is None else f"{alone} alone, {show.speed(snapshot.paced_per_s)} with the swarm"
    )


def _distance(snapshot: StatusSnapshot) -> str:
    return "" if snapshot.distance is None else f"{show.small(snapshot.distance)} a parameter, to the peers met last"


def _costs(resources: Resources) -> str:
    """What the node takes of its machine; what is not known is left out."""
    parts = (
        "" if resources.cpu is None else f"{resources.cpu:.2f} cores",
        "" if resources.memory_bytes is None else f"{show.size(resources.memory_bytes)} memory",
        "" if resources.disk_bytes is None else f"{show.size(resources.disk_bytes)} disk",
        "" if resources.gpu is None else f"GPU {resources.gpu:.0%} busy",
        "" if resources.gpu_memory_bytes is None else f"GPU memory {show.size(resources.gpu_memory_bytes)}",
    )
    return ", ".join(filter(None, parts))


def _peer_table(peers: tuple[PeerStatus, ...], *, full: bool, standing: bool, invited: bool) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    if not peers:
        return Text("no peers known yet")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("peer", no_wrap=True)
    for name in ("state", "edge"):
        table.add_column(name, no_wrap=True)
    numbers = ("round", "rtt", "sent", "received", "done", "faults", "seen")
    for name in numbers + (("standing", "score", "staleness", "clipped", "contribution") if standing else ()):
        table.add_column(name, justify="right", no_wrap=True)
    if invited:
        table.add_column("invited by", no_wrap=True)
    known = {peer.peer for peer in peers} | {peer.inviter for peer in peers if peer.inviter}
    labels = show.labels({peer: peer for peer in known})
    for peer in sorted(peers, key=lambda peer: (not peer.edge, peer.state != "alive", peer.peer)):
        table.add_row(
            Text(show.clean(peer.peer) if full else labels[peer.peer]),
            Text(peer.state, style="" if peer.state == "alive" else "yellow"),
            Text("yes" if peer.edge else "no"),
            show.count(peer.round),
            show.latency(peer.rtt_s),
            show.size(peer.bytes_sent),
            show.size(peer.bytes_received),
            show.count(peer.committed),
            show.count(peer.faults),
            show.age(peer.last_seen_s),
            *(_standing(peer) if standing else ()),
            *((labels.get(peer.inviter, show.MISSING),) if invited else ()),
        )
    return table


def _standing(peer: PeerStatus) -> tuple[str, ...]:
    """State and the time it still lasts, score, staleness, clipped share, contribution. `trusted` replaces the state."""
    left = f" {show.age(peer.shut_out_s)}" if peer.shut_out_s is not None else ""
    shares = ("–" if share is None else f"{share:.0%}" for share in (peer.staleness, peer.clipped))
    return (
        "trusted" if peer.trusted else f"{peer.standing}{left}", f"{peer.score:.1f}", *shares, f"{peer.contribution:.1f}"
    )  # fmt: skip
