"""`starling found`, `join` and `run`, and what one asks of a running node: `leave`, `eval`, `export`.

A directory that holds a node is never overwritten. What a person gives is checked before anything is written.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import click
import msgspec

from starling.gossip.errors import ConfigError, GossipError
from starling.node.cli import completion
from starling.node.cli.common import dir_option, json_option, preset_option
from starling.node.cli.documents import emit_plain
from starling.node.cli.help import Command
from starling.node.cli.progress import Slow
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.status import control

if TYPE_CHECKING:
    from starling.node.storage.run_dir import RunDir

LEAVE_S = 5.0  # from the farewell to the end of the process
SUFFIX = ".safetensors"

Function = TypeVar("Function", bound=Callable[..., Any])


class Flags(TypedDict):
    """The options that stand for keys of node.toml, as click gives them."""

    data: str | None
    device: str | None
    shard: str | None
    up: str | None
    down: str | None
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    assignments: tuple[str, ...]


def node_options(command: Function) -> Function:
    """Options for the volunteer's own settings, and `--dir`."""
    options = (
        click.option(
            "--data", metavar="PATH", help="Your own data, a file or a folder; else the task's built-in data."
        ),
        click.option("--device", metavar="auto|cpu|cuda|mps", help="Where to train; auto takes the fastest there is."),
        click.option("--up", metavar="RATE", help="Send at most this: 10mbit, 2MB (a second). 0 is no cap."),
        click.option("--down", metavar="RATE", help="Receive at most this."),
        click.option(
            "--listen", multiple=True, metavar="MULTIADDR", help="Where peers reach us: /ip4/0.0.0.0/tcp/4001."
        ),
        click.option(
            "--announce", multiple=True, metavar="MULTIADDR", help="What to tell others instead, behind a NAT."
        ),
        click.option("--shard", metavar="I", help="Which part of built-in data; -1 derives it from the peer id."),
        click.option(
            "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any key of `config show`.",
            shell_complete=completion.keys("manifest", "node"),
        ),
        dir_option,
        json_option,
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command(
    cls=Command,
    examples=(
        ("starling found examples/digits.toml", "the invite is all of standard output"),
        (
            "starling found --preset open --set task=digits --set pace.rounds=500 --listen /ip4/0.0.0.0/tcp/4001",
            "for strangers",
        ),
    ),
)
@click.argument("file", metavar="[MANIFEST.toml]", required=False, type=click.Path(path_type=Path))
@preset_option
@node_options
def found(file: Path | None, preset: str | None, run_dir: Path, as_json: bool, **flags: Unpack[Flags]) -> int:
    """Found a swarm: sign a manifest, start its first node and print the invite.

    Without a file the manifest has its defaults, which --set changes: starling found --set task=digits --set pace.rounds=500.
    Standard output is the invite alone. Ctrl-C stops the node; `starling run` goes on.
    """
    from starling.node.cli.config import check
    from starling.node.config import manifest as manifests
    from starling.node.config import presets
    from starling.node.identity import Identity
    from starling.node.storage.run_dir import RunDir

    ours, theirs = _split(flags["assignments"])
    manifest = presets.load(Manifest, file, presets.asked(preset, theirs))
    check(manifest)
    flags["assignments"] = ours
    config = _configured(NodeConfig(), flags)
    place = RunDir(run_dir)
    if place.config_file.exists() or place.manifest_file.exists():
        raise ConfigError(
            f"--dir: {run_dir} holds a node already; go on with `starling run --dir {run_dir}`, or name another directory"
        )
    place = RunDir.create(run_dir)
    signed = manifests.found(manifest, Identity.load_or_create(place.key), int(time.time() * 1000))
    _say_if_watched(f"founding {signed.name} in {place.path}")
    with _undone_if_refused(place):
        place.write_config(config)
        swarm = place.write_manifest(signed)
        return _start(place, on_listening=partial(_tell_founder, signed.name, swarm, place, as_json=as_json))


@click.command(
    cls=Command,
    examples=(
        ("starling join INVITE", "take part, with a part of the task's own data"),
        (
            "starling join INVITE --data my-photos --up 10mbit --dir photos-node",
            "with yours, and a cap on what is sent",
        ),
    ),
)
@click.argument("invite")
@node_options
def join(invite: str, run_dir: Path, as_json: bool, **flags: Unpack[Flags]) -> int:
    """Join a swarm by its invite.

    In the directory of a node of that swarm: go on, with the options given now. Ctrl-C stops the node; `starling run` goes on.
    """
    from starling.node.admission import invite as invites
    from starling.node.admission.issue import take_up
    from starling.node.identity import Identity
    from starling.node.storage.run_dir import RunDir

    invited = invites.decode(invite)
    ours, theirs = _split(flags["assignments"])
    if theirs:
        raise ConfigError(
            f"--set: {theirs[0].partition('=')[0]!r} is the manifest's, which the founder signed, or nobody's; a node sets "
            f"{', '.join(NodeConfig.__struct_fields__)}; see `starling config show node`"
        )
    flags["assignments"] = ours
    _refuse_running(run_dir)
    place = RunDir(run_dir)
    config = NodeConfig()
    if place.config_file.exists() or place.manifest_file.exists():
        held = place.swarm()
        if held != invited.swarm:
            raise ConfigError(
                f"--dir: {run_dir} holds a node of another swarm ({held}); name another directory, e.g. "
                f"`starling join INVITE --dir {run_dir}-2`"
            )
        config = place.read_config()
    config = _configured(config, flags)
    place = RunDir.create(run_dir)
    me = Identity.load_or_create(place.key)
    take_up(invited, me)
    others = tuple(address for address in invited.bootstrap if not address.endswith(f"/p2p/{me.peer_id}"))
    _say(f"joining {invited.swarm} in {place.path}; look with `starling status --dir {run_dir}`, stop with Ctrl-C")
    with _undone_if_refused(place):
        place.write_config(msgspec.structs.replace(config, bootstrap=others))
        place.write_invite(invited)
        return _start(place, on_listening=partial(_tell_joiner, invited.swarm, me.peer_id, place) if as_json else None)


@click.command(cls=Command, examples=(("starling run --dir starling-2", "where it stopped, after a crash too"),))
@dir_option
@click.option("--until-stdin-closes", is_flag=True, help="End also when standard input does, for a parent program.")
def run(run_dir: Path, until_stdin_closes: bool) -> int:
    """Run the node of a run directory: go on where it stopped."""
    from starling.node.storage.run_dir import RunDir

    place = RunDir.existing(run_dir)
    _say_if_watched(f"starting in {place.path}; look with `starling status --dir {run_dir}`, stop with Ctrl-C")
    return _start(place, until_stdin_closes=until_stdin_closes)


@click.command(cls=Command, examples=(("starling leave --dir starling-2", ""),))
@dir_option
def leave(run_dir: Path) -> None:
    """Say goodbye to the swarm, save and stop. `starling run` comes back."""
    with Slow("saying goodbye"):
        with asking(run_dir):
            control.request(run_dir, "leave")
        deadline = time.monotonic() + LEAVE_S
        while _is_running(run_dir):
            if time.monotonic() > deadline:
                raise GossipError(
                    f"the node in {run_dir} is leaving, but has not ended yet; see `starling status --dir {run_dir}`"
                )
            time.sleep(0.05)
    _say(f"left; come back with `starling run --dir {run_dir}`")


@click.command("eval", cls=Command, examples=(("starling eval --dir starling-2 --json", ""),))
@dir_option
@json_option
def evaluate(run_dir: Path, as_json: bool) -> None:
    """Measure the running node's model on held-out data."""
    with asking(run_dir), Slow("measuring on held-out data"):
        answer = control.request(run_dir, "evaluate")
    if as_json:
        emit_plain(answer)
        return
    value = answer.get("value")
    if not isinstance(value, float | int):
        raise GossipError(f"the node in {run_dir} has not measured anything yet; try again")
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
    """Write the model to a safetensors file: the running node's, or the one that a finished run left behind."""
    from starling.node.storage.run_dir import RunDir

    target = file.expanduser().resolve()
    if target.suffix != SUFFIX:
        raise ConfigError(
            f"export: {str(file)!r} must end in {SUFFIX}; try `starling export {file.with_suffix(SUFFIX)}`"
        )
    if not target.parent.is_dir():
        raise ConfigError(f"export: {target.parent} is not a folder; try `mkdir -p {target.parent}`")
    if target.is_dir() or (target.exists() and not force):
        raise ConfigError(
            f"export: {file} exists; name another file, or replace it with `starling export {file} --force`"
        )
    with Slow(f"writing {target.name}"):
        try:
            with asking(run_dir):
                control.request(run_dir, "export", path=str(target))
        except control.NotRunning:
            model = RunDir(run_dir).model
            if not model.exists():
                raise
            _copy(model, target)
    size = target.stat().st_size
    if as_json:
        emit_plain({"file": str(target), "bytes": size})
    else:
        _say(f"wrote {target} ({size:,} bytes)")


# --- settings ---------------------------------------------------------------------------------------------------


def _split(assignments: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`--set`s of node.toml, and all others: the two have no key in common."""
    heads = [(assignment.partition("=")[0].partition(".")[0].strip(), assignment) for assignment in assignments]
    known = NodeConfig.__struct_fields__
    return tuple(a for head, a in heads if head in known), tuple(a for head, a in heads if head not in known)


def _configured(config: NodeConfig, flags: Flags) -> NodeConfig:
    """`config` with what the options say; paths made absolute, so that `run` works from anywhere."""
    from starling.node.config import toml

    plain = [
        f"{key}={value}" for key, value in (("device", flags["device"]), ("shard", flags["shard"])) if value is not None
    ]
    config = toml.apply_set(config, [*flags["assignments"], *plain])
    given: dict[str, Any] = {
        key: value for key, value in (("listen", flags["listen"]), ("announce", flags["announce"])) if value
    }
    for flag, rate in (("up", flags["up"]), ("down", flags["down"])):
        if rate is not None:
            try:
                given[f"{flag}_bytes_per_s"] = toml.parse_rate(rate)
            except ConfigError as error:
                why = str(error).removeprefix("rate: ")
                raise ConfigError(f"--{flag}: {why}; try `--{flag} 10mbit`") from error
    if flags["data"] is not None:
        given["data"] = flags["data"]
    config = msgspec.structs.replace(config, **given)
    if not config.data:
        return config
    path = Path(config.data).expanduser().resolve()
    if not path.exists():
        raise ConfigError(f"--data: {config.data!r} does not exist; look with `ls {path.parent}`")
    return msgspec.structs.replace(config, data=str(path))


# --- the node's life --------------------------------------------------------------------------------------------


def _start(
    place: RunDir, *, until_stdin_closes: bool = False, on_listening: Callable[[tuple[str, ...]], None] | None = None
) -> int:
    """Run the node to its end -> the exit code. What the engine refuses gets the command to look with, if it names none.

    Raises:
        ConfigError: something that is set cannot be had.
        GossipError: the node cannot go on.
    """
    from starling.node.daemon import main as daemon

    try:
        return daemon.run(place, until_stdin_closes=until_stdin_closes, on_listening=on_listening)
    except ConfigError as error:
        if "`" in str(error):
            raise
        raise ConfigError(f"{error}; see `starling config show`") from error


@contextmanager
def _undone_if_refused(place: RunDir) -> Iterator[None]:
    """If the engine or the network refuses what is asked, the settings are as before: the corrected command meets no remains.

    A node that has written a checkpoint since has lived, and keeps them.
    """
    files = (place.config_file, place.manifest_file, place.invite_file)
    before = {path: path.read_bytes() if path.exists() else None for path in files}
    saved = _modified_ns(place.checkpoint)
    try:
        yield
    except ConfigError:
        if _modified_ns(place.checkpoint) == saved:
            for path, content in before.items():
                if content is None:
                    path.unlink(missing_ok=True)
                else:
                    path.write_bytes(content)
        raise


def _modified_ns(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


# --- the running node -------------------------------------------------------------------------------------------


@contextmanager
def asking(run_dir: Path) -> Iterator[None]:
    """Where no node answers: has there ever been one?

    Raises:
        ConfigError: no; it says how to begin.
    """
    from starling.node.storage.run_dir import RunDir

    try:
        yield
    except control.NotRunning:
        RunDir.existing(run_dir)
        raise


def _is_running(run_dir: Path) -> bool:
    try:
        control.connect(run_dir).close()
    except control.NotRunning:
        return False
    return True


def _refuse_running(run_dir: Path) -> None:
    if _is_running(run_dir):
        raise ConfigError(
            f"--dir: a node is running in {run_dir}; see `starling status --dir {run_dir}`, or name another directory"
        )


def _copy(source: Path, target: Path) -> None:
    """Under another name first: a full disk leaves no half model."""
    import shutil

    part = target.with_name(target.name + ".part")
    try:
        shutil.copyfile(source, part)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise GossipError(f"export: cannot write {target}: {error.strerror}; name another file") from error


def _tell_founder(name: str, swarm: str, place: RunDir, addresses: tuple[str, ...], *, as_json: bool) -> None:
    from starling.node.cli.documents import Founded, emit
    from starling.node.cli.members import make_invite
    from starling.node.identity import Identity

    _say(f"founded {name} ({swarm}) in {place.path}; others join with `starling join` and this invite:")
    invite = make_invite(place.path, swarm, addresses).invite
    if as_json:
        peer, directory = Identity.load_or_create(place.key).peer_id, str(place.path)
        emit(Founded(name=name, swarm=swarm, peer=peer, directory=directory, addresses=addresses, invite=invite))
    else:
        click.echo(invite)


def _tell_joiner(swarm: str, peer: str, place: RunDir, addresses: tuple[str, ...]) -> None:
    from starling.node.cli.documents import Joined, emit

    emit(Joined(swarm=swarm, peer=peer, directory=str(place.path), addresses=addresses))


def _say(text: str) -> None:
    click.echo(text, err=True)


def _say_if_watched(text: str) -> None:
    """What a person who waits would like to know; a log does not, whose last line is what a node ended with."""
    if sys.stderr.isatty():
        _say(text)
