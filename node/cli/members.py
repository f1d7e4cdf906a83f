"""`starling invite`, `revoke`, `ban`, `unban` and `trust`: who may be a member, and whom this node refuses."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli import completion
from starling.node.cli.common import dir_option, emit, emit_plain, json_option, say
from starling.node.cli.documents import Invited, Revoked
from starling.node.cli.help import Command
from starling.node.status.control import typed

if TYPE_CHECKING:
    from starling.node.storage.run_dir import RunDir

DAYS = 90.0  # as node.attach has it, which takes longer to import
UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
LONGEST_S = 10 * 365.25 * 86400.0


@click.command(
    cls=Command,
    examples=(
        ("starling invite", "one line on standard output: hand it on"),
        (
            "starling invite --for 12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN --days 30",
            "no secret: only that peer can use it",
        ),
    ),
)
@click.option(
    "--days",
    type=float,
    default=DAYS,
    show_default=True,
    help="How long the invitation, and a membership by it, lasts.",
)
@click.option(
    "--for", "peer", default="", metavar="PEER", help="Only this peer can use it; default: the first who uses it, once."
)
@dir_option
@json_option
def invite(days: float, peer: str, run_dir: Path, as_json: bool) -> None:
    """Print an invite to the running node's swarm: one line to join by.

    In a swarm of kind `invite` the line holds a signed invitation. A node can give as many as the manifest allows, and answers for
    the members that join by them: `starling revoke` removes a member and all whom it invited.
    """
    from starling.node.attach import Attached
    from starling.node.storage.run_dir import RunDir

    status = Attached(run_dir).status()
    if not status.addresses:
        raise GossipError(f"the node in {run_dir} does not listen yet; try again in a moment")
    made = make_invite(RunDir(run_dir), status.swarm, status.addresses, days=days, peer=peer)
    if as_json:
        emit(made)
    else:
        click.echo(made.invite)


def make_invite(
    place: RunDir, swarm: str, addresses: tuple[str, ...], *, days: float = DAYS, peer: str = ""
) -> Invited:
    """One invite; what it contains is said on standard error.

    Raises:
        ConfigError: the node may not invite, or has no invitation left.
    """
    from starling.gossip.wire.schema import MAX_ADDRESSES
    from starling.node import attach

    line, issued = attach.make_invite(place, swarm, addresses, days=days, peer=peer)
    made = Invited(invite=line, swarm=swarm, bootstrap=addresses[:MAX_ADDRESSES])
    if issued is None:
        return made
    left = "" if issued.left is None else f", {issued.left} left to give"
    whose = f"for {peer}" if peer else "for whoever uses it first"
    void = f"`starling revoke {issued.number} --dir {typed(place.path)}`"
    say(f"invitation {issued.number}, {whose}, until {issued.until:%Y-%m-%d}{left}; void it with {void}")
    return msgspec.structs.replace(
        made, number=issued.number, until=f"{issued.until:%Y-%m-%d}", peer=peer or None, left=issued.left
    )


@click.command(
    cls=Command,
    examples=(
        ("starling revoke 3", "the invitation that `starling invite` called 3"),
        ("starling revoke …Kx6nXTN", "a member, with all whom it invited"),
    ),
)
@click.argument("whom", metavar="PEER|NUMBER", shell_complete=completion.peers)
@dir_option
@json_option
def revoke(whom: str, run_dir: Path, as_json: bool) -> None:
    """Revoke an invitation, for good: a member's, with all whom it invited, or one that you gave out, by its number.

    The founder can revoke any invitation, a member its own and those of the members below it.
    """
    from starling.node.attach import Attached

    answer = Attached(run_dir).ask("revoke", peer=whom)
    removed = answer.get("removed")
    peers = [peer for peer in removed if isinstance(peer, str)] if isinstance(removed, list) else []
    if as_json:
        emit(Revoked(removed=tuple(peers)))
    for peer in () if as_json else peers:
        click.echo(peer)
    removed_now = "1 member is removed" if len(peers) == 1 else f"{len(peers)} members are removed"
    say(f"revoked; {removed_now}, and the revocation is being sent to the others")


# --- what this node decides by itself ---------------------------------------------------------------------------


@click.command(
    cls=Command,
    examples=(
        ("starling ban …Kx6nXTN --for 24h --why spam", "by the end of its id, as `starling peers` shows it"),
        ("starling ban 12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN", "for good"),
    ),
)
@click.argument("peer", shell_complete=completion.peers)
@click.option("--for", "duration", metavar="24h", help="Duration of the ban: 90s, 30m, 24h, 7d. Default: no end.")
@click.option("--why", metavar="TEXT", default="", help="A note for yourself, shown by `starling peers`.")
@dir_option
@json_option
def ban(peer: str, duration: str | None, why: str, run_dir: Path, as_json: bool) -> None:
    """Refuse PEER: close its connections, accept no new one, and delete the flow of its edge.

    PEER is a peer id, its beginning or its end as `starling peers` shows it. The ban is kept over restarts.
    """
    for_s = math.inf if duration is None else seconds(duration)
    fields: dict[str, object] = {"peer": peer, "why": why}
    if math.isfinite(for_s):
        fields["for_s"] = for_s
    _ask(run_dir, "ban", "banned", as_json, **fields)


@click.command(cls=Command, examples=(("starling unban …Kx6nXTN", ""),))
@click.argument("peer", shell_complete=completion.peers)
@dir_option
@json_option
def unban(peer: str, run_dir: Path, as_json: bool) -> None:
    """Undo a ban of PEER, a quarantine, or trust: its faults and score decide again."""
    _ask(run_dir, "unban", "neither banned nor trusted:", as_json, peer=peer)


@click.command(cls=Command, examples=(("starling trust …Kx6nXTN", "a known member with a bad connection"),))
@click.argument("peer", shell_complete=completion.peers)
@dir_option
@json_option
def trust(peer: str, run_dir: Path, as_json: bool) -> None:
    """Never quarantine or ban PEER, whatever its score. `starling ban` and `unban` withdraw that."""
    _ask(run_dir, "trust", "trusted", as_json, peer=peer)


def seconds(text: str) -> float:
    """A duration as a person writes it: 90s, 30m, 24h, 7d, 2w.

    Raises:
        ConfigError: it is none, or longer than ten years.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if match is None or match[2] not in UNITS_S:
        raise ConfigError(f"--for: must be a number and one of s, m, h, d, w, got {text!r}; try `--for 24h`")
    value = float(match[1]) * UNITS_S[match[2]]
    if not 0.0 < value <= LONGEST_S:
        raise ConfigError(f"--for: must be above 0 and at most ten years, got {text!r}; try `--for 24h`")
    return value


def _ask(run_dir: Path, op: str, done: str, as_json: bool, **fields: object) -> None:
    from starling.node.attach import Attached

    answer = Attached(run_dir).ask(op, **fields)
    if as_json:
        emit_plain(answer)
    else:
        say(f"{done} {answer.get('peer')}")
