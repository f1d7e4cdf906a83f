"""`starling invite` and `starling revoke`: who may come, and who may not stay."""

from __future__ import annotations

import time
from pathlib import Path

import click

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli import completion
from starling.node.cli.common import dir_option, json_option
from starling.node.cli.documents import Invited, Revoked, emit
from starling.node.cli.help import Command
from starling.node.cli.run import asking
from starling.node.status import control

DAYS = 90.0


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
    "--days", type=float, default=DAYS, show_default=True, help="How long the invitation, and what hangs on it, lasts."
)
@click.option(
    "--for", "peer", default="", metavar="PEER", help="Only this peer can use it; else whoever has the line, once."
)
@dir_option
@json_option
def invite(days: float, peer: str, run_dir: Path, as_json: bool) -> None:
    """Print an invite to the running node's swarm: one line to join by.

    Where members are invited it holds an invitation, of which a node has as many as the manifest says, and whoever joins by it is
    in your charge: `starling revoke` puts out a member and all whom it invited.
    """
    with asking(run_dir):
        told = control.status(run_dir)
    if not told.addresses:
        raise GossipError(f"the node in {run_dir} does not listen yet; try again in a moment")
    made = make_invite(run_dir, told.swarm, told.addresses, days=days, peer=peer)
    if as_json:
        emit(made)
    else:
        click.echo(made.invite)


def make_invite(
    run_dir: Path, swarm: str, addresses: tuple[str, ...], *, days: float = DAYS, peer: str = ""
) -> Invited:
    """One invite, and on standard error what is in it.

    Raises:
        ConfigError: the node may not invite, or may no more.
    """
    from starling.gossip.wire.schema import MAX_ADDRESSES
    from starling.node.admission import issue
    from starling.node.admission.invite import Invite, encode
    from starling.node.identity import Identity
    from starling.node.storage.run_dir import RunDir

    place, bootstrap = RunDir(run_dir), addresses[:MAX_ADDRESSES]
    manifest = place.read_manifest()
    if manifest is None or manifest.admission.kind != "invite":
        if peer or (manifest is not None and days != DAYS):
            raise ConfigError(
                f"--{'for' if peer else 'days'}: this swarm takes members without invitation; `starling invite` is enough"
            )
        return Invited(invite=encode(Invite(swarm, bootstrap)), swarm=swarm, bootstrap=bootstrap)
    me = Identity.load_or_create(place.key)
    issued = issue.give(
        place.issued, issue.terms_of(manifest, swarm), me, issue.take_up(place.read_invite(), me), bootstrap, days=days,
        now_s=time.time(), peer=peer,
    )  # fmt: skip
    left = "" if issued.left is None else f", {issued.left} left to give"
    whose = f"for {peer}" if peer else "for whoever uses it first"
    void = f"`starling revoke {issued.number} --dir {run_dir}`"
    click.echo(
        f"invitation {issued.number}, {whose}, until {issued.until:%Y-%m-%d}{left}; void it with {void}", err=True
    )
    return Invited(
        invite=encode(issued.invite), swarm=swarm, bootstrap=bootstrap, number=issued.number, until=f"{issued.until:%Y-%m-%d}",
        peer=peer or None, left=issued.left,
    )  # fmt: skip


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

    The founder can revoke everybody's, a member those of whom it, or somebody below it, invited.
    """
    with asking(run_dir):
        answer = control.request(run_dir, "revoke", peer=whom)
    removed = answer.get("removed")
    peers = [peer for peer in removed if isinstance(peer, str)] if isinstance(removed, list) else []
    if as_json:
        emit(Revoked(removed=tuple(peers)))
    for peer in () if as_json else peers:
        click.echo(peer)
    out = "1 member is out" if len(peers) == 1 else f"{len(peers)} members are out"
    click.echo(f"revoked; {out}, and the others are being told", err=True)
