"""Nodes from Python: `starling.create`, `join` and `Node`. Each runs in a separate process and ends with its `with` block.

Ctrl-C reaches the script alone, which then stops the node in order; a node ends with a script that is killed (`run_directory.start`).
"""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from starling.gossip.errors import ConfigError, GossipError
from starling.node import platform, run_directory
from starling.node.admission import invite as invites
from starling.node.config import manifest as manifests
from starling.node.config import presets, toml
from starling.node.config.assignments import assignments
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.forks import Forked, Servers
from starling.node.node_handle import DAYS, WRONG_INPUT, Attached, Invited
from starling.node.status.control import ControlError
from starling.node.status.final import FinalStatus
from starling.node.status.snapshot import StatusSnapshot
from starling.node.storage.run_dir import RunDir

POLL_S = 0.05
START_S = 120.0  # seconds until a node listens, after importing torch
GRACE_S = 5.0  # seconds from closing standard input to killing the process


class Node(Attached):
    """A node in a child process.

    Args:
        run_dir: holds a node: made by `create`, `join`, or the command line. Output of the process goes to `output.log` there.

    Use it as a context manager, or call `start` and `stop`. `for status in node` yields its status until it has finished.
    """

    process: subprocess.Popen[bytes] | Forked | None = None  # the child process; None before `start`
    forks: Servers | None = None  # servers that fork the process; None: it is started like any other

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def __iter__(self) -> Iterator[StatusSnapshot]:
        """Snapshots, one a second and one per change, until the rounds are done or the node has ended.

        Raises:
            GossipError: the node failed.
        """
        self.wait_until_up()
        state = ""
        try:
            for snapshot in super().__iter__():
                state = snapshot.state
                yield snapshot
        except ControlError:
            if self._ends() is None:
                raise
        if state != "finished" and self._ends():
            self.raise_if_ended()

    def _ends(self) -> int | None:
        """Wait briefly, since a node closes its socket before it ends; return the process's exit code, or None if it still runs."""
        if self.process is None:
            return None
        try:
            return self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return None

    def start(self) -> Self:
        """Start the process; the node comes up in the background.

        Raises:
            ConfigError: the directory holds no node, or one runs there already.
        """
        place = RunDir.existing(self.run_dir)
        if self.running:
            raise ConfigError(f"run_dir: a node is running in {self.run_dir}; use starling.attach({str(self.run_dir)!r})")
        self.process = run_directory.start(place, self.forks)
        return self

    def raise_if_ended(self) -> None:
        """Raise if the process has ended.

        Raises:
            GossipError: it has ended; the message holds what it printed last.
            ConfigError: it has ended because of wrong input.
        """
        if self.process is not None and (code := self.process.poll()) is not None:
            words = RunDir(self.run_dir).last_words().removeprefix("starling: ")
            kind = ConfigError if code == WRONG_INPUT else GossipError
            raise kind(f"the node in {self.run_dir} ended with exit code {code}: {words}")

    def wait_until_up(self, timeout_s: float = START_S) -> StatusSnapshot:
        """Return the first status in which peers can reach the node.

        Raises:
            GossipError: it failed, or is not up after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.raise_if_ended()
            try:
                status = self.status()
            except ControlError:
                status = None
            if status is not None and status.addresses:
                return status
            time.sleep(POLL_S)
        raise GossipError(f"the node in {self.run_dir} does not listen after {timeout_s:.0f} s; see {self.run_dir}/output.log")

    def wait_until_finished(self, timeout_s: float = GRACE_S) -> None:
        """Wait until the node reports that its rounds are done or that it is ending; its engine knows this shortly before."""
        deadline = time.monotonic() + timeout_s
        with suppress(ControlError):  # it has ended
            while self.status().state not in {"finished", "leaving", "failed"} and time.monotonic() < deadline:
                time.sleep(POLL_S)

    def wait(self, timeout_s: float | None = None) -> FinalStatus | None:
        """Wait until the process has ended -> how it ended; None if it was killed.

        Raises:
            TimeoutError: it still runs after `timeout_s`.
            GossipError: it failed.
        """
        if self.process is not None:
            try:
                code = self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"the node in {self.run_dir} still runs after {timeout_s} s") from None
            if code:
                self.raise_if_ended()
        return self.last

    def invited(self, *, days: float = DAYS, peer: str = "") -> Invited:
        """Invite as `Attached.invited` does, once the node listens."""
        self.wait_until_up()
        return super().invited(days=days, peer=peer)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Stop the node in order; kill it if it does not end within `grace_s`. Does nothing if it has ended."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            platform.kill_session(self.process.pid)
            self.process.wait()


def create(
    run_dir: str | Path,
    manifest: Manifest | str | Path | None = None,
    *,
    task: str | None = None,
    mix: str | None = None,
    overlay: str | None = None,
    rounds: int | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    device: str = "auto",
    shard: int = -1,
    listen: str | Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Node:
    """Create a swarm: sign a manifest in a new directory and return its first node, not started yet.

    Args:
        run_dir: a directory that holds no node.
        manifest: what to start from: a `Manifest`, a TOML file, or None for the defaults.
        task: `task.kind`, e.g. "digits" or "my_module:MyTask".
        mix: `mix.kind`, e.g. "pet".
        overlay: `overlay.kind`, e.g. "sticky".
        rounds: `pace.rounds`.
        preset: "vouched" or "open".
        set: other keys of the manifest, dotted, e.g. {"pace.local_steps": 10}; they win over all others.
        data: this node's own training data; None for a shard of the task's built-in data.
        device: auto, cpu, cuda or mps.
        shard: which shard of the built-in data; -1 derives it from the peer id.
        listen: multiaddrs, e.g. "/ip4/0.0.0.0/tcp/4001".
        config: other keys of node.toml, dotted, e.g. {"linger_s": 5}.

    Raises:
        ConfigError: a wrong key or value, or the directory holds a node.
    """
    given = {"task": task, "mix": mix, "overlay": overlay, "pace.rounds": rounds, **(set or {})}
    chosen = assignments(given)
    if isinstance(manifest, Manifest):
        agreed = toml.apply_set(manifest, chosen)
    else:
        file = None if manifest is None else Path(manifest)
        agreed = presets.load(Manifest, file, presets.asked(preset, chosen))
    manifests.check(agreed)
    own = _config(NodeConfig(), data, device, shard, listen, config)
    run_directory.create(Path(run_dir), agreed, own)
    return Node(run_dir)


def join(
    run_dir: str | Path,
    invite: str,
    *,
    data: str | Path | None = None,
    device: str = "auto",
    shard: int = -1,
    listen: str | Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Node:
    """Prepare a member of a swarm and return its node, not started yet.

    Args:
        run_dir: a new directory, or one that holds a node of the same swarm.
        invite: the line that a member prints.
        data: as for `create`.
        device: as for `create`.
        shard: as for `create`.
        listen: as for `create`.
        config: as for `create`.

    Raises:
        ConfigError: the invite is damaged, a wrong key or value, or the directory holds a node of another swarm.
    """
    own = _config(NodeConfig(), data, device, shard, listen, config)
    run_directory.join(Path(run_dir), invites.decode("".join(invite.split())), own)
    return Node(run_dir)


def run(run_dir: str | Path) -> FinalStatus | None:
    """Run the node of a directory to its end, as `starling run` does -> how it ended; None if it was killed.

    Raises:
        ConfigError: something in the directory is wrong.
        GossipError: the node failed.
    """
    with Node(run_dir) as node:
        return node.wait()


def attach(run_dir: str | Path) -> Attached:
    """Return the node in a directory of this machine, running or ended.

    Raises:
        ConfigError: the directory has never held a node.
    """
    return Attached(RunDir.existing(Path(run_dir)).path)


def _config(
    config: NodeConfig, data: str | Path | None, device: str, shard: int, listen: str | Sequence[str] | None, more: Mapping[str, Any] | None
) -> NodeConfig:
    given: dict[str, Any] = {"device": device, "shard": shard}
    if data is not None:
        path = Path(data).expanduser().resolve()
        if not path.exists():
            raise ConfigError(f"data: {str(data)!r} does not exist")
        given["data"] = str(path)
    if listen is not None:
        given["listen"] = [listen] if isinstance(listen, str) else list(listen)
    return toml.apply_set(config, assignments({**given, **(more or {})}))
