"""`starling status`, `peers` and `tui`: look at a running node, change nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from node import control
from node.cli.output import DEFAULT_DIR, console, dir_option, json_option
from node.status import PeerStatus, StatusSnapshot, encode
from tui import format as show

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDE = 190  # columns from which a peer id is shown in full
WIDE_ENOUGH = 136  # columns from which it is shown how peers behave
INVITED_TOO = 148  # columns from which it is shown as well who invited them


@click.command()
@dir_option
@json_option
def status(run_dir: Path, as_json: bool) -> None:
    """Say how a running node does. A problem, if there is one, is the first line."""
    snapshot = _snapshot(run_dir)
    if as_json:
        click.echo(encode(snapshot), nl=False)
        return
    out = console()
    _print_problem(out, snapshot)
    out.print(_status_table(snapshot))


@click.command()
@dir_option
@json_option
def peers(run_dir: Path, as_json: bool) -> None:
    """List the members a running node knows, those it exchanges with first.

    Where members are invited also by whom: `starling revoke PEER` puts out a member and all below it.
    """
    snapshot = _snapshot(run_dir)
    if as_json:
        click.echo(msgspec.json.encode(snapshot.peers))
        return
    out = console()
    _print_problem(out, snapshot)
    invited = out.width >= INVITED_TOO and any(peer.inviter for peer in snapshot.peers)
    full, standing = out.width >= WIDE, out.width >= WIDE_ENOUGH
    out.print(_peer_table(snapshot.peers, full=full, standing=standing, invited=invited))
    _print_reasons(out, snapshot)


@click.command("tui")
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path), default=DEFAULT_DIR)
def terminal(directory: Path) -> None:
    """Watch a running node, or all nodes of a demo, in the terminal.

    DIR is a run directory or a demo's folder (default: starling-node). Waits for the node if it is not running yet.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(f"the terminal UI needs a terminal; try `starling status --dir {directory}`")
    from tui.app import StarlingApp
    from tui.source import source_for

    StarlingApp([source_for(directory)]).run()


def _snapshot(run_dir: Path) -> StatusSnapshot:
    """The node's status.

    Raises:
        ConfigError: the directory has never held a node.
        ControlError: its node does not run or does not answer.
    """
    try:
        return control.status(run_dir)
    except control.NotRunning:
        from node.run_dir import RunDir

        RunDir.existing(run_dir)
        raise


def _print_problem(out: Console, snapshot: StatusSnapshot) -> None:
    from rich.text import Text

    if snapshot.problem is not None:
        out.print(Text(f"! {show.clean(snapshot.problem)}", style="bold red"), soft_wrap=True)


def _print_reasons(out: Console, snapshot: StatusSnapshot) -> None:
    from rich.text import Text

    for peer in snapshot.peers:
        if peer.why:
            out.print(Text(f"{show.short(peer.peer)} {peer.state}: {show.clean(peer.why)}"), soft_wrap=True)


def _status_table(snapshot: StatusSnapshot) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    ended = snapshot.exchanges
    value_round = f" (round {show.count(snapshot.value_round)})" if snapshot.value_round is not None else ""
    alive = sum(peer.edge for peer in snapshot.peers)
    rows = {
        "state": snapshot.state
        + (", resumed" if snapshot.rejoined else "")
        + (", joined late" if snapshot.joined_late else ""),
        "swarm": f"{snapshot.name} ({snapshot.swarm})",
        "peer": snapshot.peer,
        "round": show.rounds(snapshot.round, snapshot.rounds),
        snapshot.metric.replace("_", " ") or "value": show.figure(snapshot.value) + value_round,
        "loss": show.figure(snapshot.loss),
        "members": f"{snapshot.members:,}, {alive:,} with an edge",
        "exchanges": f"{ended.committed:,} done, {ended.aborted:,} aborted, {ended.busy:,} busy, {ended.timeout:,} timed out",
        "sent": f"{show.size(snapshot.bytes_sent)} ({show.rate(snapshot.up_bytes_per_s)})",
        "received": f"{show.size(snapshot.bytes_received)} ({show.rate(snapshot.down_bytes_per_s)})",
        "payload": show.size(snapshot.payload_bytes),
        "local steps": f"{show.count(snapshot.local_steps)} ({show.speed(snapshot.steps_per_s)})",
        "task": snapshot.task or show.MISSING,
        "algorithm": f"{snapshot.algorithm or show.MISSING} on {snapshot.overlay or show.MISSING}",
        "parameters": show.count(snapshot.parameters),
        "device": snapshot.device or show.MISSING,
        "engine": f"{snapshot.engine_restarts} restarts",
        "up": show.duration(snapshot.uptime_s),
        "addresses": ", ".join(snapshot.addresses) or show.MISSING,
    }
    if snapshot.delta is not None:
        rows["privacy"] = f"ε {show.privacy(snapshot.epsilon, snapshot.delta)}"
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(Text(show.clean(name)), Text(show.clean(text)))
    return table


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
    for name in numbers + (("standing", "score", "late", "clipped", "merit") if standing else ()):
        table.add_column(name, justify="right", no_wrap=True)
    if invited:
        table.add_column("invited by", no_wrap=True)
    for peer in sorted(peers, key=lambda peer: (not peer.edge, peer.state != "alive", peer.peer)):
        table.add_row(
            Text(show.clean(peer.peer) if full else show.short(peer.peer)),
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
            *((show.short(peer.inviter) or show.MISSING,) if invited else ()),
        )
    return table


def _standing(peer: PeerStatus) -> tuple[str, ...]:
    """What it did and what follows: trusted wins over all, an end that never comes is not shown."""
    left = f" {show.age(peer.shut_out_s)}" if peer.shut_out_s is not None else ""
    shares = ("–" if share is None else f"{share:.0%}" for share in (peer.staleness, peer.clipped))
    return (
        "trusted" if peer.trusted else f"{peer.standing}{left}", f"{peer.score:.1f}", *shares, f"{peer.contribution:.1f}"
    )  # fmt: skip
