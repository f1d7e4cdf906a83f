"""`starling ban`, `unban` and `trust`: what the owner decides about peers."""

from __future__ import annotations

import math
import re
from pathlib import Path

import click

from starling.gossip.errors import ConfigError
from starling.node.cli import completion
from starling.node.cli.common import dir_option, json_option
from starling.node.cli.documents import emit_plain
from starling.node.cli.help import Command
from starling.node.cli.run import asking
from starling.node.status import control

UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
LONGEST_S = 10 * 365.25 * 86400.0


@click.command(
    cls=Command,
    examples=(
        ("starling ban …Kx6nXTN --for 24h --why spam", "by the end of its id, as `starling peers` shows it"),
        ("starling ban 12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN", "for good"),
    ),
)
@click.argument("peer", shell_complete=completion.peers)
@click.option("--for", "duration", metavar="24h", help="End the ban after so long: 90s, 30m, 24h, 7d. Default: never.")
@click.option("--why", metavar="TEXT", default="", help="For yourself: shown by `starling peers`.")
@dir_option
@json_option
def ban(peer: str, duration: str | None, why: str, run_dir: Path, as_json: bool) -> None:
    """Shut PEER out: no connection, and what it contributed to the correction is deleted.

    PEER is a peer id, its beginning or its end as `starling peers` shows it. The ban holds over restarts.
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
    """Undo what was decided about PEER, a ban or trust: it is judged like anybody."""
    _ask(run_dir, "unban", "judged like anybody:", as_json, peer=peer)


@click.command(cls=Command, examples=(("starling trust …Kx6nXTN", "a friend whose line is bad"),))
@click.argument("peer", shell_complete=completion.peers)
@dir_option
@json_option
def trust(peer: str, run_dir: Path, as_json: bool) -> None:
    """Never shut PEER out, whatever it does. `starling ban` and `unban` withdraw that."""
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
        raise ConfigError(f"--for: must be more than nothing and at most ten years, got {text!r}; try `--for 24h`")
    return value


def _ask(run_dir: Path, op: str, done: str, as_json: bool, **fields: object) -> None:
    with asking(run_dir):
        answer = control.request(run_dir, op, timeout_s=control.REPLY_S, **fields)
    if as_json:
        emit_plain(answer)
    else:
        click.echo(f"{done} {answer.get('peer')}", err=True)
