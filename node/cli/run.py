"""`starling create`, `join`, `run`, `pause`, `resume`, `limits` and `leave`: start, control and end a node.

What a person gives is checked before anything is written, and a directory that holds a node is never overwritten.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from starling.gossip.errors import ConfigError
from starling.node.cli.common import (
    PATH,
    check_network,
    dir_and_json,
    dir_option,
    emit,
    file_option,
    json_option,
    preset_option,
    say,
    set_option,
)
from starling.node.cli.help import command
from starling.node.cli.progress import slow
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.status.control import typed

if TYPE_CHECKING:
    from starling.node.admission.invite import Invite
    from starling.node.storage.run_dir import RunDir

_MOST_OF_AN_INVITE = 1 << 16  # bytes of an invite, with the text that a mail program adds
DEVICES = {"gpu": "cuda"}  # other names of devices
HOST_PORT = re.compile(r"(?:(?P<host>[\w.-]*|\[[0-9a-fA-F:]*\]|\*):)?(?P<port>\d{1,5})")
NODE_OPTIONS = (
    click.option("--data", metavar="PATH", help="Your own data, a file or a folder. Default: the task's built-in data."),
    click.option("--device", metavar="auto|cpu|cuda|mps", help="Where to train; auto takes the fastest device."),
    click.option("--up", metavar="RATE", help="Upload cap: 10mbit, 2MB (a second). 0 is no cap."),
    click.option("--down", metavar="RATE", help="Download cap."),
    click.option("--nice", metavar="N", help="Lower the priority of training by N, up to 19: other programs go first."),
    click.option("--listen", multiple=True, metavar="MULTIADDR", help="Where to accept connections: /ip4/0.0.0.0/tcp/4001."),
    click.option("--announce", multiple=True, metavar="MULTIADDR", help="Addresses to give to peers instead, behind a NAT."),
    click.option("--map-port", is_flag=True, help="Ask the router (UPnP, NAT-PMP) to lead a port to this node."),
    click.option("--no-lan", is_flag=True, help="Neither look for members on the local network nor be found there."),
    click.option("--relay", metavar="off|control|small", help="What to carry for members that nobody can dial. Default: control."),
    click.option("--stage", metavar="auto|K", help="In a swarm of crews: which part of the model to hold; auto: what is wanted most."),
    click.option("--shard", metavar="I", help="Which shard of the built-in data; -1 derives it from the peer id."),
    set_option("manifest", "node", help="Any key of `config show`."),
    dir_option,
    json_option,
)
"""Options for the volunteer's own settings, and the run directory."""


def node_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add all of NODE_OPTIONS to a command."""
    return reduce(lambda made, option: option(made), reversed(NODE_OPTIONS), command)


@command(
    ("starling create --example digits", "the invite is all of standard output"),
    ("starling create --preset open --set task=digits --set pace.rounds=500 --listen /ip4/0.0.0.0/tcp/4001", "for strangers"),
)
@click.argument("file", metavar="[MANIFEST.toml]", required=False, type=PATH)
@click.option("--example", metavar="NAME", help="Start from a manifest of `starling examples` instead of a file.")
@preset_option
@node_options
def create(
    file: Path | None, example: str | None, preset: str | None, assignments: tuple[str, ...], run_dir: Path, as_json: bool, **flags: Any
) -> int:
    """Create a swarm: sign a manifest, start its first node and print the invite.

    Without a file the manifest has its defaults, which --set changes: starling create --set task=digits --set pace.rounds=500.
    Standard output is the invite alone. Ctrl-C stops the node; `starling run` starts it again.
    """
    from starling.node import run_directory
    from starling.node.cli.config import check
    from starling.node.cli.documents import Created
    from starling.node.cli.examples import find
    from starling.node.cli.members import describe
    from starling.node.config import presets
    from starling.node.node_handle import make_invite

    check_network()
    if example is not None:
        if file is not None:
            raise ConfigError(f"--example: excludes MANIFEST.toml, got {file} and {example}; give one")
        file = Path(str(find(example)))
    ours, theirs = _split(assignments)
    manifest = presets.load(Manifest, file, presets.asked(preset, theirs))
    check(manifest)
    config = _configured(NodeConfig(), ours, **flags)

    def on_listening(addresses: tuple[str, ...]) -> None:
        say(f"created {manifest.name} ({swarm}) in {place.path}; others join with `starling join` and this invite:")
        made = make_invite(place, swarm, addresses)
        describe(made, place.path)
        if as_json:
            emit(Created(name=manifest.name, invite=made.invite, **_listening(place, swarm, addresses)))
        else:
            click.echo(made.invite)

    with run_directory.undone_if_refused(run_dir):
        place, swarm = run_directory.create(run_dir, manifest, config)
        _say_if_watched(f"creating {manifest.name} in {place.path}")
        return _start(place, on_listening=on_listening)


@command(
    ("starling join INVITE", "take part, with a shard of the task's own data"),
    ("starling join --invite-file invite.txt", "an invite that admits is not to be seen among a machine's processes"),
    ("starling join INVITE --data my-photos --up 10mbit --dir photos-node", "with your data, and a cap on what is sent"),
)
@click.argument("invite", required=False)
@file_option("--invite-file", help="Holds the invite, instead of INVITE.")
@click.option("--anyway", is_flag=True, help="Also where less memory is free than the task is expected to take.")
@node_options
def join(
    invite: str | None, invite_file: Path | None, anyway: bool, assignments: tuple[str, ...], run_dir: Path, as_json: bool, **flags: Any
) -> int:
    """Join a swarm by its invite: INVITE itself, - for standard input, or --invite-file.

    In the directory of a node of that swarm: continue it with the options given now. Ctrl-C stops the node; `starling run` starts
    it again.
    """
    from starling.node import run_directory
    from starling.node.cli.documents import Joined
    from starling.node.node_handle import Attached
    from starling.node.storage.run_dir import RunDir

    check_network()
    invited = read_invite(invite, invite_file)
    if invited.bearer and invite not in {None, "-"}:
        say("note: this invite admits whoever has it, and all users of a machine see its commands; safer is `starling join - < FILE`")
    ours, theirs = _split((*assignments, "memory_check=false") if anyway else assignments)
    if theirs:
        raise ConfigError(
            f"--set: {theirs[0].partition('=')[0]!r} is no key of a node; those of the manifest are signed by the creator. A node sets "
            f"{', '.join(NodeConfig.__struct_fields__)}; see `starling config show node`"
        )
    if Attached(run_dir).running:
        raise ConfigError(f"--dir: a node is running in {run_dir}; see `starling status --dir {typed(run_dir)}`, or name another directory")
    held = RunDir(run_dir)
    config = _configured(held.read_config() if held.config_file.exists() else NodeConfig(), ours, **flags)
    with run_directory.undone_if_refused(run_dir):
        place = run_directory.join(run_dir, invited, config)
        say(f"joining {invited.swarm} in {place.path}; {_look(run_dir)}")
        return _start(place, on_listening=lambda at: emit(Joined(**_listening(place, invited.swarm, at))) if as_json else None)


@command(("starling run --dir starling-2", "where it stopped, after a crash too"))
@dir_option
@click.option("--until-stdin-closes", is_flag=True, help="End also when standard input is closed, for a parent program.")
def run(run_dir: Path, until_stdin_closes: bool) -> int:
    """Run the node of a run directory: continue where it stopped."""
    from starling.node.storage.run_dir import RunDir

    check_network()
    place = RunDir.existing(run_dir)
    _say_if_watched(f"starting in {place.path}; {_look(run_dir)}")
    return _start(place, until_stdin_closes=until_stdin_closes)


@command(("starling pause", "the machine is needed for something else"))
@dir_option
def pause(run_dir: Path) -> None:
    """Do no more local steps. The node stays in the swarm and answers its peers, until `starling resume` or its end."""
    from starling.node.node_handle import Attached

    Attached(run_dir).pause()
    say(f"paused; go on with `starling resume --dir {typed(run_dir)}`")


@command(("starling resume", ""))
@dir_option
def resume(run_dir: Path) -> None:
    """Do local steps again after `starling pause`."""
    from starling.node.node_handle import Attached

    Attached(run_dir).resume()
    say("local steps go on")


@command(
    ("starling limits", "what is in force"),
    ("starling limits --up 2MB --down none --threads 2", "until the node ends"),
    ("starling limits --up 10mbit --keep", "in later runs too"),
)
@click.option("--up", metavar="RATE", help="Upload cap: 10mbit, 2MB (a second). 0 or none is no cap.")
@click.option("--down", metavar="RATE", help="Download cap.")
@click.option("--threads", metavar="N", help="Torch threads of local steps; 0 tries which number is fastest.")
@click.option("--keep", is_flag=True, help="Write what is in force to the node's settings too.")
@dir_and_json
def limits(up: str | None, down: str | None, threads: str | None, keep: bool, run_dir: Path, as_json: bool) -> None:
    """Show what a running node may use, or change it while it runs."""
    from starling.node.cli.common import console, listing, result
    from starling.node.config import toml
    from starling.node.node_handle import Attached
    from starling.node.status.format import rate

    plain = NodeConfig() if threads is None else toml.apply_set(NodeConfig(), [f"threads={threads}"])
    given = {
        "up_bytes_per_s": None if up is None else _rate("--up", up),
        "down_bytes_per_s": None if down is None else _rate("--down", down),
        "threads": None if threads is None else plain.threads,
    }
    now = Attached(run_dir).limits(keep=keep, **{name: value for name, value in given.items() if value is not None})
    rows = {
        "up": rate(now.up_bytes_per_s) if now.up_bytes_per_s else "no cap",
        "down": rate(now.down_bytes_per_s) if now.down_bytes_per_s else "no cap",
        "threads": str(now.threads) if now.threads else "as many as are fastest",
    }
    result(now, as_json, lambda _: console().print(listing(rows)))


@command(("starling leave --dir starling-2", ""))
@dir_option
def leave(run_dir: Path) -> None:
    """Send a farewell to the swarm, save and stop. `starling run` comes back."""
    from starling.node.node_handle import Attached

    with slow("leaving"):
        Attached(run_dir).leave()
    say(f"left; come back with `starling run --dir {typed(run_dir)}`")


def read_invite(given: str | None, file: Path | None = None) -> Invite:
    """Return the invite on the command line, in standard input (-) or in a file. Raises ConfigError: not exactly one, unreadable, or no
    invite.
    """
    from starling.node.admission import invite as invites

    return invites.decode("".join(_text_of_invite(given, file).split()).strip("<>\"'`"))


def _text_of_invite(given: str | None, file: Path | None) -> str:
    if (given is None) == (file is None):
        raise ConfigError("join: needs one INVITE, - for standard input, or --invite-file FILE; see `starling join --help`")
    if given is not None and given != "-":
        return given
    try:
        if file is None:
            return sys.stdin.buffer.read(_MOST_OF_AN_INVITE).decode()
        with file.open("rb") as source:
            return source.read(_MOST_OF_AN_INVITE).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        where = file or "standard input"
        raise ConfigError(f"invite: {where} cannot be read: {why}; a member prints one with `starling invite`") from error


def _split(assignments: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split `--set`s into those of node.toml and all others: the two have no key in common."""
    ours: dict[bool, list[str]] = {True: [], False: []}
    for each in assignments:
        ours[each.partition("=")[0].partition(".")[0].strip() in NodeConfig.__struct_fields__].append(each)
    return tuple(ours[True]), tuple(ours[False])


def _configured(
    config: NodeConfig,
    assignments: tuple[str, ...],
    *,
    data: str | None,
    device: str | None,
    up: str | None,
    down: str | None,
    listen: tuple[str, ...],
    announce: tuple[str, ...],
    shard: str | None,
    nice: str | None,
    relay: str | None,
    no_lan: bool,
    map_port: bool,
    stage: str | None,
) -> NodeConfig:
    """Return `config` with the options' values; paths made absolute, so that `run` works from any directory."""
    from starling.node.config import toml

    plain = [] if device is None else [f"device={DEVICES.get(device, device)}"]
    plain += [] if shard is None else [f"shard={shard}"]
    plain += [] if stage is None else [f"stage={-1 if stage == 'auto' else stage}"]
    plain += [] if nice is None else [f"nice={nice}"]
    plain += ["lan=false"] if no_lan else []
    plain += ["map_port=true"] if map_port else []
    plain += [] if relay is None else [f"relay={relay}"]
    config = toml.apply_set(config, [*assignments, *plain])
    given = {
        "listen": tuple(_multiaddr("--listen", text) for text in listen) or None,
        "announce": tuple(_multiaddr("--announce", text) for text in announce) or None,
        "up_bytes_per_s": None if up is None else _rate("--up", up),
        "down_bytes_per_s": None if down is None else _rate("--down", down),
        "data": str(existing("--data", data or config.data)) if data or config.data else None,
    }
    return msgspec.structs.replace(config, **{key: value for key, value in given.items() if value is not None})


def existing(option: str, path: str) -> Path:
    """Return the absolute path of an existing file or folder that a person named. Raises ConfigError: it does not exist."""
    found = Path(path).expanduser().resolve()
    if not found.exists():
        raise ConfigError(f"{option}: {path!r} does not exist; look with `ls {typed(found.parent)}`")
    return found


def _rate(option: str, text: str) -> int:
    """Parse bytes per second. A number without a unit is refused: it could mean bytes, kilobytes or megabits."""
    from starling.node.config import toml

    number = text.strip()
    if number.isdecimal() and int(number):
        raise ConfigError(f"{option}: needs a unit, got {text!r}; try `{option} {number}mbit`, or `{option} {number}MB` a second")
    try:
        return toml.parse_rate(text)
    except ConfigError as error:
        why = str(error).removeprefix("rate: ")
        raise ConfigError(f"{option}: {why}; try `{option} 10mbit`") from error


def _multiaddr(option: str, text: str) -> str:
    """Return `text` if it looks like a multiaddr; libp2p checks the rest when it listens."""
    if text.startswith("/"):
        return text
    match = HOST_PORT.fullmatch(text.strip())
    host, port = ("", "4001") if match is None else (match["host"] or "", match["port"])
    host = "0.0.0.0" if host in {"", "*"} else host  # noqa: S104 - a suggestion
    kind = "ip6" if host.startswith("[") else "ip4" if re.fullmatch(r"[\d.]+", host) else "dns4"
    raise ConfigError(f"{option}: must be a multiaddr, got {text!r}; try `{option} /{kind}/{host.strip('[]') or '::'}/tcp/{port}`")


def _start(place: RunDir, *, until_stdin_closes: bool = False, on_listening: Callable[[tuple[str, ...]], None] | None = None) -> int:
    """Run the node to its end -> exit code. An engine's refusal gets a next command, if it names none."""
    from starling.node import run_directory
    from starling.node.daemon import main as daemon

    seconds = run_directory.Seconds(place)
    try:
        return daemon.run(place, until_stdin_closes=until_stdin_closes, on_listening=on_listening, seconds=seconds)
    except ConfigError as error:
        if "`" in str(error):
            raise
        raise ConfigError(f"{error}; see `starling config show`") from error
    finally:
        seconds.close()


def _listening(place: RunDir, swarm: str, addresses: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of `documents.Joined`."""
    from starling.node.identity import Identity

    peer = Identity.load_or_create(place.key).peer_id
    return {"swarm": swarm, "peer": peer, "directory": str(place.path), "addresses": addresses}


def _look(run_dir: Path) -> str:
    return f"look with `starling status --dir {typed(run_dir)}`, stop with Ctrl-C"


def _say_if_watched(text: str) -> None:
    """Print a line on a terminal only: in a log the last line is the reason why a node ended."""
    if sys.stderr.isatty():
        say(text)
