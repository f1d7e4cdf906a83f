"""One node process of a demo: started, asked, and its last status."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field

from starling.gossip.errors import ConfigError, GossipError
from starling.node import operate
from starling.node.attach import WRONG_INPUT
from starling.node.status import control
from starling.node.status.snapshot import StatusSnapshot
from starling.node.storage.run_dir import RunDir


@dataclass(slots=True)
class Member:
    """A node of this machine, run by its own process as a volunteer's is.

    Args:
        index: its number in the demo.
        run_dir: its files.
        peer: its id.
        process: None before the first start.
        snapshot: its last status.
        joined_late: it came while the others were training.
        attack: its attack; "" for an honest node.
        killed_at: time.monotonic() when it was killed, None while it should run.
        reborn: it was killed and started again.
        has_banned: peers that its owner has banned.
    """

    index: int
    run_dir: RunDir
    peer: str
    process: subprocess.Popen[bytes] | None = None
    snapshot: StatusSnapshot | None = None
    joined_late: bool = False
    attack: str = ""
    killed_at: float | None = None
    reborn: bool = False
    has_banned: set[str] = field(default_factory=set)

    @property
    def finished(self) -> bool:
        """It has done all of its rounds."""
        return self.snapshot is not None and self.snapshot.state == "finished"

    @property
    def down(self) -> bool:
        """Its process has ended."""
        return self.process is None or self.process.poll() is not None

    def start(self) -> None:
        """Start the process, its output in its own folder."""
        self.process = operate.start(self.run_dir)

    def poll(self) -> None:
        """Read the status if it answers."""
        if not self.down:
            try:
                self.snapshot = control.status(self.run_dir.path)
            except control.ControlError:
                return

    def ask(self, op: str, **fields: object) -> bool:
        """Have it do something, as its owner would -> whether it did; it may start or end just now."""
        if self.down:
            return False
        try:
            control.request(self.run_dir.path, op, timeout_s=control.REPLY_S, **fields)
        except control.ControlError:
            return False
        return True

    def ban(self, peer: str, why: str) -> None:
        """What `starling ban` does, once it can: a node that does not listen yet has no connections to refuse."""
        listening = self.snapshot is not None and bool(self.snapshot.addresses)
        if listening and peer not in self.has_banned and self.ask("ban", peer=peer, why=why):
            self.has_banned.add(peer)

    def why_not_started(self) -> GossipError:
        """In the node's own words; exit code 2 is a person's mistake, which its words name already."""
        words = self.run_dir.last_words().removeprefix("starling: ")
        if self.process is not None and self.process.returncode == WRONG_INPUT:
            return ConfigError(words)
        return GossipError(f"node {self.index} did not start: {words}")
