"""Prepare a run directory for a creator or a member, and start its node: what the command line, the Python API and the demo share."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

from msgspec import structs

from starling.gossip.errors import ConfigError
from starling.node.admission.chain import terms_of
from starling.node.admission.invite import Invite
from starling.node.admission.issue import give, take_up
from starling.node.config import fingerprint, large
from starling.node.config import initial_model as start_of
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest, MetricsSection, NodeConfig
from starling.node.forks import FOLDER, Forked, Servers, available
from starling.node.identity import Identity
from starling.node.status.control import typed
from starling.node.storage import private, start_file
from starling.node.storage.run_dir import RunDir

DAYS = 30.0  # days for which the invitation of a second node of this machine is valid


def holds_node(path: Path) -> bool:
    """Return whether a node was created or joined in `path` before."""
    place = RunDir(path)
    return place.config_file.exists() or place.manifest_file.exists()


def create(path: Path, manifest: Manifest, config: NodeConfig) -> tuple[RunDir, str]:
    """Sign `manifest` with the directory's identity and write it there, with the creator's settings -> run directory, swarm id.

    The directory is made if it is missing; its key is used if it has one. A manifest signed by another creator is a template.

    In a swarm of scripts the file of `task.start` is copied into it, and `task.fingerprint` is as the caller wrote it.

    Raises ConfigError: the directory holds a node already or cannot be written, `config.shard` is not a shard of `manifest`, the file of
    its `task.start` cannot be read, or a task that is not built in cannot be made here.
    """
    manifests.check_shard(manifest, config.shard)
    if holds_node(path):
        raise ConfigError(f"--dir: {path} holds a node already; go on with `starling run --dir {typed(path)}`, or name another directory")
    manifest, config = start_of.with_file_digest(manifest, _placed(config))
    manifest = large.sealed(fingerprint.sealed(manifest, str(Path.cwd()) if config.trust else ""))
    place = RunDir.create(path)
    signed = manifests.create(manifest, Identity.load_or_create(place.key), int(time.time() * 1000))
    if (wanted := start_of.sent(signed)) is not None:
        start_file.keep(Path(config.start), place.start, wanted)
        config = structs.replace(config, start="")
    place.write_config(config)
    return place, place.write_manifest(signed)


def join(path: Path, invite: Invite, config: NodeConfig) -> RunDir:
    """Write the invite and the settings of a member to be; their `bootstrap` is set to the invite's addresses.

    What is written is the invitation bound to the directory's identity, without the key that could be used by others.

    The directory is made if it is missing; it may hold a node of the same swarm, whose settings are replaced.

    Raises ConfigError: the directory holds a node of another swarm or cannot be written, or the invitation is for another peer.
    """
    if holds_node(path):
        place = RunDir(path)
        manifest, held = place.read_manifest(), ""
        with suppress(ConfigError):  # a damaged invite, which this one replaces
            held = place.swarm()
        if held not in {"", invite.swarm}:
            raise ConfigError(
                f"--dir: {path} holds a node of another swarm ({held}); name another directory, e.g. "
                f"`starling join INVITE --dir {typed(f'{path}-2')}`"
            )
        if manifest is not None:
            manifests.check_shard(manifest, config.shard)
    place = RunDir.create(path)
    me = Identity.load_or_create(place.key)
    chain = take_up(invite, me)
    others = tuple(address for address in invite.bootstrap if not address.endswith(f"/p2p/{me.peer_id}"))
    place.write_config(structs.replace(_placed(config), bootstrap=others))
    place.write_invite(replace(invite, chain=chain, bearer=b""))
    return place


def _placed(config: NodeConfig) -> NodeConfig:
    return structs.replace(config, start=start_of.absolute(config.start))


class Seconds:
    """Further nodes of one machine, in folders of the first one's directory, for stages of its crew whose machines are lost.

    They are forked from processes that have imported all, so that such a node is there within seconds, where a machine can do that.
    """

    def __init__(self, first: RunDir) -> None:
        self._first = first
        self._running: dict[int, subprocess.Popen[bytes] | Forked] = {}  # held, as they end when we let go
        self._open = ExitStack()
        self._servers: Servers | None = None
        self._preparing: Thread | None = None

    def prepare(self) -> None:
        """Start the servers from which they are forked, in a thread, unless that was done."""
        if self._preparing is None and available():
            self._preparing = Thread(target=self._prepare, daemon=True)
            self._preparing.start()

    def _prepare(self) -> None:
        if FOLDER in os.environ:  # this node itself is of such a server, as in a demo
            self._servers = Servers(Path(os.environ[FOLDER]))
            return
        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="starling-forks-"))
        self._servers = self._open.enter_context(Servers(Path(folder)))

    def close(self) -> None:
        """Let go of all; they leave the swarm in order."""
        if self._preparing is not None:
            self._preparing.join()
        for each in self._running.values():
            if each.stdin is not None:
                each.stdin.close()
        self._open.close()

    def start(self, stage: int, bootstrap: tuple[str, ...]) -> bool:
        """Start the node for a stage with the first one's settings unless it runs; return whether it can be a member.

        Raises ConfigError: its directory cannot be created, or this node has no invitation to give.
        """
        if self._preparing is not None:
            self._preparing.join()
        running, manifest = self._running.get(stage), self._first.read_manifest()
        if running is not None and running.poll() is None:
            return True
        if manifest is None or manifest.admission.kind == "allow":
            return False
        config = self._first.read_config()
        place = RunDir.create(self._first.path / f"stage-{stage}")
        listen = tuple(re.sub(r"/(tcp|udp)/\d+", r"/\1/0", address) for address in config.listen)
        place.write_config(
            structs.replace(config, stage=stage, bootstrap=bootstrap, listen=listen, announce=(), map_port=False, metrics=MetricsSection())
        )
        place.write_manifest(manifest)
        if manifest.admission.kind == "invite" and place.read_invite() is None:
            me, second = (Identity.load_or_create(each.key) for each in (self._first, place))
            terms, above = terms_of(manifest, self._first.swarm()), take_up(self._first.read_invite(), me)
            given = give(self._first.issued_folder, terms, me, above, bootstrap, days=DAYS, now_s=time.time(), peer=second.peer_id)
            place.write_invite(given.invite)
        self._running[stage] = start(place, self._servers)
        return True


def start(place: RunDir, forks: Servers | None = None) -> subprocess.Popen[bytes] | Forked:
    """Start the node of a directory in a separate process, which ends when its standard input closes; output goes to `place.output`.

    The process has its own session, so Ctrl-C in a terminal reaches only its parent. With `forks` it is forked, which is faster.
    """
    arguments = ["run", "--dir", str(place.path), "--until-stdin-closes"]
    with open(private.keep(place.output, os.O_WRONLY | os.O_APPEND), "ab") as output:  # noqa: PTH123 - a descriptor
        if forks is not None:
            return forks.node(arguments, output.fileno())
        return subprocess.Popen(
            [sys.executable, "-m", "starling.node.cli.main", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


@contextmanager
def undone_if_refused(path: Path) -> Iterator[None]:
    """Around `create` or `join` and the node's start: on a ConfigError node.toml, manifest.toml and invite are as before.

    So that the corrected command can be typed in the same directory. A directory that was not there is removed. Where a checkpoint was
    written since, nothing is undone: the node has trained.
    """
    place, was_there = RunDir(path), os.path.lexists(path)
    files = (place.config_file, place.manifest_file, place.invite_file)
    before = {file: _content(file) for file in files}
    saved = _modified_ns(place.checkpoint)
    try:
        yield
    except ConfigError:
        if _modified_ns(place.checkpoint) == saved and path.is_dir():
            for file, content in before.items():
                if content is None:
                    file.unlink(missing_ok=True)
                else:
                    private.replace(file, content)
            if not was_there:
                shutil.rmtree(path, ignore_errors=True)
        raise


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"--dir: {path} cannot be read: {error.strerror}; look with `ls -ld {typed(path)}`") from error


def _modified_ns(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None
