"""`starling invite`, `revoke`, `ban`, `unban` and `trust`: decide who may be a member, and which peers this node refuses."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from starling.gossip.errors import ConfigError
from starling.node.cli import completion
from starling.node.cli.common import dir_and_json, emit_plain, result, say
from starling.node.cli.help import command
from starling.node.status.control import typed

if TYPE_CHECKING:
    from starling.node.node_handle import Invited

DAYS = 90.0  # the default of node.node_handle, which takes longer to import
UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
LONGEST_S = 10 * 365.25 * 86400.0
PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"

peer_argument = click.argument("peer", shell_complete=completion.peers)


@command(
    ("starling invite", "one line on standard output: hand it on"),
    (f"starling invite --for {PEER} --days 30", "no secret: only that peer can use it"),
)
@click.option("--days", type=float, default=DAYS, help="How long the invitation, and a membership by it, lasts.")
@click.option("--for", "peer", metavar="PEER", help="Only this peer can use it; default: the first who uses it, once.")
@dir_and_json
def invite(days: float, peer: str | None, run_dir: Path, as_json: bool) -> None:
    """Print an invite to the running node's swarm: one line to join by.

    It names this node and others that it reached, so it works while any of them runs; a later one names whoever is there then.
    In a swarm of kind `invite` the line holds a signed invitation. A node can give as many as the manifest allows, and answers for
    the members that join by them: `starling revoke` removes a member and all members below it.
    """
    from starling.node.node_handle import Attached

    made = Attached(run_dir).invited(days=days, peer=peer or "")
    describe(made, run_dir)
    result(made, as_json, lambda made: click.echo(made.invite))


def describe(made: Invited, run_dir: Path) -> None:
    """Say on standard error what invitation an invite contains, if any."""
    if made.number is not None:
        left = "" if made.left is None else f", {made.left} left to give"
        whose = f"for {made.peer}" if made.peer else "for the first who uses it"
        void = f"`starling revoke {made.number} --dir {typed(run_dir)}`"
        say(f"invitation {made.number}, {whose}, until {made.until}{left}; void it with {void}")


@command(
    ("starling revoke 3", "the invitation that `starling invite` called 3"),
    ("starling revoke …Kx6nXTN", "a member, with all members below it"),
)
@click.argument("target", metavar="PEER|NUMBER", shell_complete=completion.peers)
@dir_and_json
def revoke(target: str, run_dir: Path, as_json: bool) -> None:
    """Revoke an invitation, for good: a member's, with all members below it, or one that you gave out, by its number.

    The creator can revoke any invitation, a member its own and those of the members below it.
    """
    from starling.node.node_handle import Attached

    answer = Attached(run_dir).ask("revoke", peer=target)
    removed = answer.get("removed")
    peers = [peer for peer in removed if isinstance(peer, str)] if isinstance(removed, list) else []
    if as_json:
        emit_plain({"removed": peers})
    for peer in () if as_json else peers:
        click.echo(peer)
    removed_now = "1 member is removed" if len(peers) == 1 else f"{len(peers)} members are removed"
    say(f"revoked; {removed_now}, and the revocation is being sent to the others")


@command(
    ("starling ban …Kx6nXTN --for 24h --why spam", "by the end of its id, as `starling peers` shows it"),
    (f"starling ban {PEER}", "for good"),
)
@peer_argument
@click.option("--for", "duration", metavar="24h", help="Duration of the ban: 90s, 30m, 24h, 7d. Default: no end.")
@click.option("--why", metavar="TEXT", default="", show_default=False, help="A note for yourself, shown by `starling peers`.")
@dir_and_json
def ban(peer: str, duration: str | None, why: str, run_dir: Path, as_json: bool) -> None:
    """Refuse PEER: close its connections, accept no new one, and delete the flow of its edge.

    PEER is a peer id, its beginning or its end as `starling peers` shows it. The ban is kept over restarts.
    """
    for_s = math.inf if duration is None else seconds(duration)
    _decide(run_dir, "ban", "banned", as_json, peer=peer, why=why, **({"for_s": for_s} if for_s < math.inf else {}))


@command(("starling unban …Kx6nXTN", ""))
@peer_argument
@dir_and_json
def unban(peer: str, run_dir: Path, as_json: bool) -> None:
    """Undo a ban of PEER, a quarantine, or trust: its faults and score decide again."""
    _decide(run_dir, "unban", "no longer banned, quarantined or trusted:", as_json, peer=peer)


@command(("starling trust …Kx6nXTN", "a known member with a bad connection"))
@peer_argument
@dir_and_json
def trust(peer: str, run_dir: Path, as_json: bool) -> None:
    """Never quarantine or ban PEER because of its score. `starling ban` and `unban` withdraw that."""
    _decide(run_dir, "trust", "trusted", as_json, peer=peer)


def _decide(run_dir: Path, op: str, done: str, as_json: bool, **fields: object) -> None:
    from starling.node.node_handle import Attached

    answer = Attached(run_dir).ask(op, **fields)
    if as_json:
        emit_plain(answer)
    else:
        say(f"{done} {answer.get('peer')}")


def seconds(text: str) -> float:
    """Parse a duration as a person writes it: 90s, 30m, 24h, 7d, 2w. Raises ConfigError: it is none, or longer than ten years."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if match is None or match[2] not in UNITS_S:
        raise ConfigError(f"--for: must be a number and one of s, m, h, d, w, got {text!r}; try `--for 24h`")
    value = float(match[1]) * UNITS_S[match[2]]
    if not 0.0 < value <= LONGEST_S:
        raise ConfigError(f"--for: must be above 0 and at most ten years, got {text!r}; try `--for 24h`")
    return value
