"""A swarm of real node processes on loopback: started, watched, hurt on purpose, measured, and taken down again.

Each node is what a volunteer runs (`starling run --dir …`), with its own identity, sockets and engine process. The orchestrator
only starts and kills processes and reads their status; it takes no part in training. Nodes end when their standard input closes, so
none outlives it.

Shapes: n nodes, d parameters.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from msgspec import structs

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.wire.schema import MAX_ADDRESSES
from starling.node.admission.invite import Invite
from starling.node.admission.issue import give, terms_of
from starling.node.config.manifest import found
from starling.node.config.schema import LimitsSection, Manifest, NodeConfig, RecordSection, Scalar
from starling.node.demo.process import Member
from starling.node.identity import Identity
from starling.node.storage.run_dir import RunDir

POLL_S = 0.25
RECORD_S = 0.5  # between two lines of a record: a demo is short
START_S = 60.0  # for the slowest machine to bring one node up
EACH_S = 5.0  # … and for each of those that start beside it
STALL_S = 90.0  # no node makes a step for so long: the run has failed
GRACE_S = 2.5  # from asking a process to end to killing it
REBIRTH_S = 1.0  # a killed node is restarted this long after the others noticed
NOTICE_S = 15.0  # … or after this long if they did not

WHY_BANNED = "a demo bans its Byzantine nodes"

NodeState = Literal["done", "killed", "left", "failed", "banned"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Args:
        manifest: task, algorithm and pace; `rounds` = 0 with `seconds` set.
        nodes: n, >= 2.
        seconds: stop after so long instead of after the manifest's rounds.
        kill: (node, fraction of the run) pairs: SIGKILL, then a restart from the checkpoint.
        join_late: fraction of the run at which one more node joins, or None.
        byzantine: (node, attack) pairs.
        ban_at: fraction of the run at which the owner of every other node bans those, or None.
        folder: where run directories go; None for a temporary one that is deleted.
        record: every node keeps a record of its run, for `folder`.
    """

    manifest: Manifest
    nodes: int = 8
    seconds: float | None = None
    kill: tuple[tuple[int, float], ...] = ()
    join_late: float | None = None
    byzantine: tuple[tuple[int, str], ...] = ()
    ban_at: float | None = None
    folder: Path | None = None
    record: bool = False


@dataclass(slots=True)
class Demo:
    """A running demo; a context manager that leaves no process behind."""

    plan: Plan
    members: list[Member] = field(default_factory=list)
    swarm: str = ""
    bootstrap: tuple[str, ...] = ()
    folder: Path = Path()
    began: float = 0.0
    ended: float = 0.0
    ban: dict[str, Any] | None = None
    """Round and accuracy when the Byzantine nodes were banned."""

    def __enter__(self) -> Self:
        self.folder = self.plan.folder or Path(tempfile.mkdtemp(prefix="starling-demo-"))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--dir: {self.folder} cannot be used: {error.strerror}; name another folder") from error
        if any(self.folder.glob("node-*")):
            raise ConfigError(f"--dir: {self.folder} holds an earlier demo; name another folder or delete it")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._take_down()
        unexplained = isinstance(error, GossipError) and not isinstance(error, ConfigError)  # the logs say more
        if self.plan.folder is None and not unexplained:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- the run ------------------------------------------------------------------------------------------

    def run(self, progress: Callable[[float, str], None]) -> dict[str, Any]:
        """Run to the end and return the table as plain data.

        Args:
            progress: called with the fraction done and one line, several times a second.

        Raises:
            GossipError: no node could be started or the swarm made no progress.
        """
        self.began = time.monotonic()
        self._found()
        for index in range(1, self.plan.nodes):
            self._join(index)
        self._wait_until_up(progress)
        for fraction in self._watch():
            progress(min(fraction, 1.0), self._line())
        self._collect()
        self.ended = time.monotonic()
        return self._table()

    def _found(self) -> None:
        first = self._prepare(0)
        identity = Identity.load_or_create(first.run_dir.key)
        manifest, admission = self.plan.manifest, self.plan.manifest.admission
        if admission.kind == "allow" and not admission.members:
            everybody = range(self.plan.nodes + (self.plan.join_late is not None))
            listed = structs.replace(admission, members=tuple(self._peer(index) for index in everybody))
            manifest = structs.replace(manifest, admission=listed)
        manifest = found(manifest, identity, int(time.time() * 1000))
        self.swarm = first.run_dir.write_manifest(manifest)
        first.start()
        self.bootstrap = self._addresses(first)

    def _join(self, index: int, *, late: bool = False) -> None:
        member = self._prepare(index, bootstrap=self.bootstrap)
        member.joined_late = late
        member.run_dir.write_invite(self._invite(member))
        member.start()

    def _invite(self, member: Member) -> Invite:
        """With an invitation by the founder, if the swarm asks for one."""
        place = self.members[0].run_dir
        manifest = place.read_manifest()
        assert manifest is not None
        if manifest.admission.kind != "invite":
            return Invite(self.swarm, self.bootstrap)
        founder, terms = Identity.load_or_create(place.key), terms_of(manifest, self.swarm)
        return give(
            place.issued, terms, founder, (), self.bootstrap, days=30.0, now_s=time.time(), peer=member.peer
        ).invite

    def _prepare(self, index: int, bootstrap: tuple[str, ...] = ()) -> Member:
        run_dir = RunDir.create(self.folder / f"node-{index}")
        count = self.plan.nodes + 2
        attack = dict(self.plan.byzantine).get(index, "")
        crew: dict[str, Scalar] = (
            {"crew": ",".join(self._peer(bad) for bad, _ in self.plan.byzantine)} if attack else {}
        )
        config = NodeConfig(
            listen=("/ip4/127.0.0.1/tcp/0",), bootstrap=bootstrap, device="cpu", trust=True,
            shard=index % self.plan.manifest.partition.shards,
            threads=1, checkpoint_s=2.0, linger_s=3600.0, limits=LimitsSection(connections=4 * count, connections_per_ip=4 * count),
            attack=attack, attack_params=crew, attack_agreed=bool(attack),
            record=RecordSection(every_s=RECORD_S if self.plan.record else 0.0),
        )  # fmt: skip
        run_dir.write_config(config)
        member = Member(index, run_dir, self._peer(index), attack=attack)
        self.members.append(member)
        return member

    def _peer(self, index: int) -> str:
        """A node's peer id; it gets its key if it has none yet."""
        return Identity.load_or_create(RunDir.create(self.folder / f"node-{index}").key).peer_id

    @property
    def _honest(self) -> list[Member]:
        return [member for member in self.members if not member.attack]

    def _addresses(self, member: Member) -> tuple[str, ...]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            member.poll()
            if member.snapshot is not None and member.snapshot.addresses:
                return member.snapshot.addresses
            if member.down:
                raise member.why_not_started()
            time.sleep(0.05)
        raise GossipError(f"the first node was not listening after {START_S:.0f} s; see {member.run_dir.output}")

    def _living_addresses(self) -> tuple[str, ...]:
        """One address of each node that runs, as many as an invite holds."""
        statuses = [m.snapshot.addresses for m in self.members if m.snapshot is not None and not m.down]
        return tuple(addresses[0] for addresses in statuses if addresses)[:MAX_ADDRESSES]

    def _wait_until_up(self, progress: Callable[[float, str], None]) -> None:
        patience = START_S + EACH_S * len(self.members)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            for member in self.members:
                member.poll()
                if member.down:
                    raise member.why_not_started()
            up = sum(member.snapshot is not None and member.snapshot.state == "training" for member in self.members)
            progress(0.0, f"starting {len(self.members)} nodes: {up} training")
            if any(m.snapshot is not None and m.snapshot.state in {"training", "finished"} for m in self.members):
                return
            time.sleep(POLL_S)
        raise GossipError(f"no node was training after {patience:.0f} s; see {self.folder}/node-*/output.log")

    def _watch(self) -> Iterator[float]:
        """Yields the fraction done until every living node has finished."""
        training_since = moved_at = time.monotonic()
        kills, late, steps = list(self.plan.kill), self.plan.join_late, -1
        while True:
            for member in self.members:
                member.poll()
            now = time.monotonic()
            total = sum(m.snapshot.local_steps for m in self.members if m.snapshot is not None)
            if total != steps:
                steps, moved_at = total, now
            if now - moved_at > STALL_S:
                raise GossipError(f"no node made a step for {STALL_S:.0f} s; see {self.folder}/node-*/output.log")
            fraction = self._fraction(now - training_since)
            yield fraction
            for index, at in [kill for kill in kills if fraction >= kill[1]]:
                kills.remove((index, at))
                self._kill(self.members[index])
            for member in self.members:
                self._revive(member, now)
            if self.plan.ban_at is not None and fraction >= self.plan.ban_at:
                self._ban()
            if late is not None and fraction >= late:
                late = None
                self.bootstrap = self._living_addresses() or self.bootstrap
                self._join(len(self.members), late=True)
            if self.plan.seconds is not None:
                if now - training_since >= self.plan.seconds:
                    return
            elif all(m.finished or (m.down and m.killed_at is None) for m in self._honest):
                return
            time.sleep(POLL_S)

    def _fraction(self, elapsed_s: float) -> float:
        if self.plan.seconds is not None:
            return elapsed_s / self.plan.seconds
        rounds = [m.snapshot.round for m in self._honest if m.snapshot is not None and not m.down]
        return float(np.median(rounds)) / self.plan.manifest.pace.rounds if rounds else 0.0

    def _kill(self, member: Member) -> None:
        assert member.process is not None
        member.process.send_signal(signal.SIGKILL)
        member.process.wait()
        assert member.process.stdin is not None
        member.process.stdin.close()
        member.killed_at = time.monotonic()

    def _revive(self, member: Member, now: float) -> None:
        """Restart a killed node once the others have noticed that it is gone."""
        if member.killed_at is None:
            return
        gone = now - member.killed_at
        noticed = all(
            not any(p.peer == member.peer and p.state in {"alive", "suspect"} for p in other.snapshot.peers)
            for other in self.members
            if other is not member and other.snapshot is not None and not other.down
        )
        if (noticed and gone > REBIRTH_S) or gone > NOTICE_S:
            member.killed_at, member.reborn = None, True
            member.start()

    def _ban(self) -> None:
        """What `starling ban` does, by the owner of every honest node; repeated for nodes that could not be asked, or came later."""
        if self.ban is None:
            for member in self._honest:
                member.ask("evaluate")
                member.poll()
            statuses = [m.snapshot for m in self._honest if m.snapshot is not None and not m.down]
            values = [snapshot.value for snapshot in statuses if snapshot.value is not None]
            self.ban = {
                "round": int(np.median([snapshot.round for snapshot in statuses])) if statuses else None,
                "after_s": round(time.monotonic() - self.began, 3),
                "mean": sum(values) / len(values) if values else None,
                "min": min(values, default=None),
            }
        for member in self._honest:
            for other in self.members:
                if other.attack:
                    member.ban(other.peer, WHY_BANNED)

    def _is_banned(self, member: Member) -> bool:
        """Every honest node that can be asked shuts it out for good, or for an hour and more."""
        statuses = [m.snapshot for m in self._honest if m.snapshot is not None and not m.down]
        return bool(statuses) and all(
            any(row.peer == member.peer and row.standing == "ban" for row in snapshot.peers) for snapshot in statuses
        )

    def _line(self) -> str:
        alive = [m for m in self.members if not m.down and m.snapshot is not None]
        statuses = [m.snapshot for m in alive if m.snapshot is not None and not m.attack]
        values = [snapshot.value for snapshot in statuses if snapshot.value is not None]
        rounds = [snapshot.round for snapshot in statuses]
        metric = next((m.snapshot.metric for m in alive if m.snapshot is not None and m.snapshot.metric), "value")
        mean = f"{metric} {sum(values) / len(values):.3f}" if values else f"{metric} –"
        bad = len(alive) - len(statuses)
        lying = f" ({bad} Byzantine{', banned' if self.ban else ''})" if bad else ""
        return f"{len(alive)} nodes{lying}, round {int(np.median(rounds)) if rounds else 0}, {mean}"

    # --- the end ------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Have every node evaluate and export, then read its last status."""
        for member in self.members:
            if not member.finished:  # one that ends just now: its row says what it last said
                member.ask("evaluate")
                member.ask("export", path=str(member.run_dir.model))
            member.poll()

    def _table(self) -> dict[str, Any]:
        rows = [self._row(member) for member in self.members]
        statuses = [m.snapshot for m in self.members if m.snapshot is not None]
        if not statuses:
            raise GossipError("no node answered")
        honest = [row for row in rows if row["state"] == "done" and not row["byzantine"]]
        values = [row["value"] for row in honest if row["value"] is not None]
        committed = sum(s.exchanges.committed for s in statuses)
        return {
            "swarm": self.swarm,
            "wall_s": round(self.ended - self.began, 3),
            "rounds": max((m.snapshot.round for m in self._honest if m.snapshot is not None), default=0),
            "metric": statuses[0].metric,
            "mean": sum(values) / len(values) if values else None,
            "min": min(values, default=None),
            "max": max(values, default=None),
            "ban": self.ban,
            "consensus_distance": self._consensus_distance(),
            "bytes_per_exchange": sum(s.payload_bytes for s in statuses) / committed if committed else None,
            "dense_bytes": 4 * (statuses[0].parameters or 0),
            "nodes": rows,
        }

    def _row(self, member: Member) -> dict[str, Any]:
        status = member.snapshot
        state: NodeState = "failed"
        back = status is not None and status.state in {"training", "finished"}
        if member.killed_at is not None or (member.reborn and not back and not member.down):
            state = "killed"  # and not back in time
        elif member.attack and self._is_banned(member):
            state = "banned"
        elif status is not None and (member.finished or (self.plan.seconds is not None and not member.down)):
            state = "done"
        elif status is not None and (status.state == "leaving" or (member.attack and not member.down)):
            state = "left"  # the run does not wait for Byzantine nodes
        named = {"peer": member.peer, "state": state, "byzantine": bool(member.attack)}
        if status is None:
            return named
        return {
            **named,
            "rounds": status.round,
            "local_steps": status.local_steps,
            "value": status.value,
            "bytes_sent": status.bytes_sent,
            "bytes_received": status.bytes_received,
            "exchanges": {
                "committed": status.exchanges.committed,
                "aborted": status.exchanges.aborted,
                "busy": status.exchanges.busy,
                "timeout": status.exchanges.timeout,
            },
            "rejoined": status.rejoined,
            "joined_late": status.joined_late,
        }

    def _consensus_distance(self) -> float | None:
        """Ξ of the honest nodes' exported models: Ξ² = mean_i ‖x_i − x̄‖²."""
        from safetensors.numpy import load_file  # noqa: PLC0415 - only needed at the very end

        vectors = []
        for member in self._honest:
            if not member.down and member.run_dir.model.exists():
                tensors = load_file(member.run_dir.model)
                vectors.append(np.concatenate([tensors[name].ravel().astype(np.float64) for name in sorted(tensors)]))
        if len(vectors) < 2:
            return None
        stacked = np.stack(vectors)
        return math.sqrt(float(((stacked - stacked.mean(0)) ** 2).sum(1).mean()))

    def _take_down(self) -> None:
        """Close every node's standard input, wait, then kill what is left."""
        running = [m.process for m in self.members if m.process is not None and m.process.poll() is None]
        for process in running:
            assert process.stdin is not None
            process.stdin.close()
        deadline = time.monotonic() + GRACE_S
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
