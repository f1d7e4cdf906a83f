"""A swarm of real node processes on loopback: started, observed, killed on purpose, measured, and shut down.

Each node is what a volunteer runs (`starling run --dir …`), with its own identity, sockets and engine process, forked where that is
possible. The orchestrator only starts and kills processes and reads their status; it takes no part in training. Nodes end when their
standard input closes, so none outlives it.

Shapes: n nodes, d parameters.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Self

from msgspec import structs

from starling.gossip.catalogue import Scalar
from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.wire.schema import MAX_ADDRESSES
from starling.node import forks, node_handle, run_directory
from starling.node.admission import invite as invites
from starling.node.child_node import Node
from starling.node.config import initial_model
from starling.node.config.schema import LimitsSection, Manifest, NodeConfig, RecordSection
from starling.node.demo.summary import DemoAlone, DemoBan, DemoNode, DemoSummary, NodeState
from starling.node.forks import Servers
from starling.node.identity import Identity
from starling.node.status import demo_folder
from starling.node.status.control import ControlError
from starling.node.status.snapshot import StatusSnapshot
from starling.node.storage.run_dir import RunDir

POLL_S = 0.25
RECORD_S = 0.5  # seconds between two lines of a record, since a demo is short
START_S = 60.0  # seconds for the slowest machine to start one node
EACH_S = 5.0  # seconds more for each node that starts at the same time
STALL_S = 90.0  # seconds without any step after which the run has failed
GRACE_S = 2.5  # seconds from asking a process to end to killing it
REBIRTH_S = 1.0  # a killed node is restarted this long after the others noticed
ALONE_S = 5.0  # seconds for which the swarm's summary waits for the lone node
NOTICE_S = 15.0  # … or after this time if they did not notice

WHY_BANNED = "a demo bans its Byzantine nodes"


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a demo. `join_late` and `ban_at` are fractions of the run."""

    manifest: Manifest  # task, algorithm and pace; `rounds` = 0 with `seconds` set
    nodes: int = 8  # >= 2
    seconds: float | None = None  # stop after so long instead of after the manifest's rounds
    kill: tuple[tuple[int, float], ...] = ()  # (node, fraction of the run): SIGKILL, then a restart from the checkpoint
    join_late: float | None = None  # time at which one more node joins
    byzantine: tuple[tuple[int, str], ...] = ()  # (node, attack)
    ban_at: float | None = None  # time at which the owner of every other node bans those
    folder: Path | None = None  # folder of run directories; None: a temporary one that is deleted
    record: bool = False  # whether every node records its run
    alone: Manifest | None = None  # manifest of the lone node, which trains beside the swarm on node 0's data


class Member(Node):
    """A node of the demo: its number, directory and id, and its attack, "" for an honest node."""

    def __init__(self, index: int, run_dir: Path, peer: str, attack: str = "") -> None:
        super().__init__(run_dir)
        self.index, self.peer, self.attack = index, peer, attack
        self.snapshot: StatusSnapshot | None = None  # its last status
        self.killed_at: float | None = None  # time.monotonic() when it was killed, None while it should run
        self.reborn = False  # whether it was killed and restarted
        self.banned: set[str] = set()  # peers that its owner has banned

    @property
    def finished(self) -> bool:
        """Return whether the node has done all of its rounds."""
        return self.snapshot is not None and self.snapshot.state == "finished"

    @property
    def down(self) -> bool:
        """Return whether the process has ended."""
        return self.process is None or self.process.poll() is not None

    def poll(self) -> None:
        """Read the status if it answers."""
        if not self.down:
            with suppress(ControlError):
                self.snapshot = self.status()

    def does(self, op: str, **fields: object) -> bool:
        """Send a request, as its owner would -> whether it was carried out; the node may start or end just now."""
        try:
            self.ask(op, **fields)
        except ControlError:
            return False
        return True

    def ban(self, peer: str) -> None:
        """Ban a peer as `starling ban` does, as soon as possible: a node that does not listen yet has no connections to refuse."""
        listening = self.snapshot is not None and bool(self.snapshot.addresses)
        if listening and peer not in self.banned and self.does("ban", peer=peer, why=WHY_BANNED):
            self.banned.add(peer)

    def kill(self) -> None:
        """Send SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.stop()
        self.killed_at = time.monotonic()


@dataclass(slots=True)
class Demo:
    """A running demo; a context manager that leaves no process behind."""

    plan: Plan
    members: list[Member] = field(default_factory=list)
    swarm: str = ""
    bootstrap: tuple[str, ...] = ()
    folder: Path = Path()
    began: float = 0.0
    before_ban: DemoBan | None = None
    _open: ExitStack = field(default_factory=ExitStack)
    alone: Member | None = None
    _forks: Servers | None = None

    def __enter__(self) -> Self:
        self.folder = self.plan.folder or Path(tempfile.mkdtemp(prefix="starling-demo-"))
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--dir: {self.folder} cannot be used: {error.strerror}; name another folder") from error
        if demo_folder.nodes(self.folder):
            raise ConfigError(f"--dir: {self.folder} holds an earlier demo; name another folder or delete it")
        if forks.available():
            sockets = self._open.enter_context(tempfile.TemporaryDirectory(prefix="starling-forks-"))
            self._forks = self._open.enter_context(Servers(Path(sockets)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close every node's standard input, wait, then kill what is left."""
        all_of_them = [*self.members, *([self.alone] if self.alone is not None else [])]
        for member in all_of_them:
            if member.process is not None and member.process.stdin is not None:
                member.process.stdin.close()
        deadline = time.monotonic() + GRACE_S
        for member in all_of_them:
            member.stop(max(0.0, deadline - time.monotonic()))
        self._open.close()
        unexplained = isinstance(error, GossipError) and not isinstance(error, ConfigError)  # the logs say more
        if self.plan.folder is None and not unexplained:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- the run ------------------------------------------------------------------------------------------

    def run(self, progress: Callable[[float, str], None]) -> DemoSummary:
        """Run to the end; `progress` is called with the fraction done and one line, several times a second.

        Raises GossipError: no node could be started or the swarm made no progress.
        """
        self.began = time.monotonic()
        self._found()
        for index in range(1, self.plan.nodes):
            self._join(index)
        self._start_alone()
        self._wait_until_training(progress)
        for fraction in self.watch():
            progress(min(fraction, 1.0), self.line())
        for member in self.members:
            if not member.finished:  # a node that is just ending: its row has its last status
                member.does("evaluate")
                member.does("export", path=str(RunDir(member.run_dir).model))
            member.poll()
        wall_s = time.monotonic() - self.began
        self._wait_for_alone(progress)
        return self.summary(wall_s)

    def _found(self) -> None:
        manifest, admission = self.plan.manifest, self.plan.manifest.admission
        if admission.kind == "allow" and not admission.members:
            members = tuple(map(self.peer, range(self.plan.nodes + (self.plan.join_late is not None))))
            manifest = structs.replace(manifest, admission=admission.changed(members=members))
        creator = self._member(0)
        _, self.swarm = run_directory.create(creator.run_dir, manifest, self.config(0))
        self.bootstrap = creator.start().wait_until_up(START_S).addresses

    def _join(self, index: int) -> None:
        """Join with an invitation by the creator, if the swarm requires one."""
        line = node_handle.make_invite(RunDir(self.members[0].run_dir), self.swarm, self.bootstrap).invite
        member = self._member(index)
        run_directory.join(member.run_dir, invites.decode(line), self.config(index))
        member.start()

    def _start_alone(self) -> None:
        """Start an ordinary node in a swarm of its own, which the terminal UI does not show."""
        if self.plan.alone is not None:
            folder = self.folder / demo_folder.ALONE
            self.alone = Member(0, folder, Identity.load_or_create(RunDir.create(folder).key).peer_id)
            self.alone.forks = self._forks
            run_directory.create(folder, self.plan.alone, self.config(0, self.plan.alone))
            self.alone.start()

    def _wait_for_alone(self, progress: Callable[[float, str], None]) -> None:
        """Wait for the lone node, which is seldom later than the swarm; its failure is not the demo's."""
        if (alone := self.alone) is None:
            return
        deadline = time.monotonic() + ALONE_S
        while not (alone.finished or alone.down or self.plan.seconds is not None) and time.monotonic() < deadline:
            progress(1.0, "the node that trains alone ends")
            time.sleep(POLL_S)
            alone.poll()
        if not alone.finished:
            alone.does("evaluate")
        alone.poll()

    def _member(self, index: int) -> Member:
        folder, attack = demo_folder.place(self.folder, index), dict(self.plan.byzantine).get(index, "")
        member = Member(index, folder, self.peer(index), attack)
        member.forks = self._forks
        self.members.append(member)
        return member

    def config(self, index: int, manifest: Manifest | None = None) -> NodeConfig:
        """Return the settings of a node of the demo's swarm, or of another."""
        plan, connections = self.plan, 4 * (self.plan.nodes + 2)
        manifest = manifest or plan.manifest
        stages = manifest.crew.stages
        attack = dict(plan.byzantine).get(index, "")
        crew: dict[str, Scalar] = {"crew": ",".join(self.peer(bad) for bad, _ in plan.byzantine)} if attack else {}
        return NodeConfig(
            listen=("/ip4/127.0.0.1/tcp/0",),
            device="cpu",
            trust=True,
            shard=index // stages % manifest.partition.shards,
            threads=1,
            checkpoint_s=2.0,
            linger_s=3600.0,
            limits=LimitsSection(connections=connections, connections_per_ip=connections),
            stage=index % stages if stages > 1 else -1,
            attack=attack,
            attack_params=crew,
            attack_agreed=bool(attack),
            start=initial_model.place(manifest),
            record=RecordSection(every_s=RECORD_S if plan.record else 0.0),
        )

    def peer(self, index: int) -> str:
        """Return a node's peer id; it gets its key if it has none yet."""
        return Identity.load_or_create(RunDir.create(demo_folder.place(self.folder, index)).key).peer_id

    @property
    def _honest(self) -> list[Member]:
        return [member for member in self.members if not member.attack]

    def _wait_until_training(self, progress: Callable[[float, str], None]) -> None:
        patience_s = START_S + EACH_S * len(self.members)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            for member in self.members:
                member.poll()
                member.raise_if_ended()
            states = [snapshot.state for snapshot in _statuses(self.members)]
            progress(0.0, f"starting {len(self.members)} nodes: {states.count('training')} training")
            if {"training", "finished"} & set(states):
                return
            time.sleep(POLL_S)
        raise GossipError(f"no node was training after {patience_s:.0f} s; see {self.folder}/node-*/output.log")

    def watch(self) -> Iterator[float]:
        """Yield the fraction done until every honest node that runs has finished."""
        began = moved_at = time.monotonic()
        story, steps = self._story(), -1
        while True:
            total, now = self._poll(), time.monotonic()
            if total != steps:
                steps, moved_at = total, now
            if now - moved_at > STALL_S:
                raise GossipError(f"no node made a step for {STALL_S:.0f} s; see {self.folder}/node-*/output.log")
            fraction = self._fraction(now - began)
            yield fraction
            while story and fraction >= story[0][0]:
                story.pop(0)[1]()
            for member in self.members:
                self._revive(member, now)
            if self.plan.ban_at is not None and fraction >= self.plan.ban_at:
                self.ban()
            if self._is_over(now - began):
                return
            time.sleep(POLL_S)

    def _poll(self) -> int:
        """Poll all nodes; return the members' total local steps."""
        for each in (*self.members, *(() if self.alone is None else (self.alone,))):
            each.poll()
        return sum(snapshot.local_steps for snapshot in (it.snapshot for it in self.members) if snapshot is not None)

    def _story(self) -> list[tuple[float, Callable[[], object]]]:
        """Return what happens once, in order, each with its share of the run."""
        happens: list[tuple[float, Callable[[], object]]] = [(at, self.members[index].kill) for index, at in self.plan.kill]
        if self.plan.join_late is not None:
            happens.append((self.plan.join_late, self._join_late))
        return sorted(happens, key=lambda each: each[0])

    def _join_late(self) -> None:
        """Start one node more, which knows addresses of now."""
        addresses = (snapshot.addresses[0] for snapshot in _statuses(self.members) if snapshot.addresses)
        self.bootstrap = tuple(addresses)[:MAX_ADDRESSES] or self.bootstrap
        self._join(len(self.members))

    def _is_over(self, elapsed_s: float) -> bool:
        if self.plan.seconds is not None:
            return elapsed_s >= self.plan.seconds
        return all(it.finished or (it.down and it.killed_at is None) for it in self._honest)

    def _fraction(self, elapsed_s: float) -> float:
        if self.plan.seconds is not None:
            return elapsed_s / self.plan.seconds
        return median(self._rounds() or [0]) / self.plan.manifest.pace.rounds

    def _rounds(self) -> list[int]:
        return [snapshot.round for snapshot in _statuses(self._honest)]

    def _revive(self, member: Member, now: float) -> None:
        """Restart a killed node after the others have noticed its death."""
        if member.killed_at is None:
            return
        others = _statuses(each for each in self.members if each is not member)
        rows = (row for snapshot in others for row in snapshot.peers if row.peer == member.peer)
        gone_s, noticed = now - member.killed_at, all(row.state not in {"alive", "suspect"} for row in rows)
        if (noticed and gone_s > REBIRTH_S) or gone_s > NOTICE_S:
            member.killed_at, member.reborn = None, True
            member.start()

    def ban(self) -> None:
        """Run `starling ban` as the owner of every honest node; repeated for nodes that did not answer, or joined later."""
        if self.before_ban is None:
            for member in self._honest:
                member.does("evaluate")
                member.poll()
            values, rounds = _values(_statuses(self._honest)), self._rounds()
            self.before_ban = DemoBan(
                round=int(median(rounds)) if rounds else None,
                after_s=round(time.monotonic() - self.began, 3),
                mean=fmean(values) if values else None,
                min=min(values, default=None),
            )
        for member in self._honest:
            for other in self.members:
                if other.attack:
                    member.ban(other.peer)

    def _is_banned(self, member: Member) -> bool:
        """Return whether every honest node that answers has banned it."""
        statuses = _statuses(self._honest)
        return bool(statuses) and all(
            any(row.peer == member.peer and row.standing == "ban" for row in snapshot.peers) for snapshot in statuses
        )

    def line(self) -> str:
        """Return how the swarm does, in one line."""
        statuses, honest = _statuses(self.members), _statuses(self._honest)
        values, bad = _values(honest), len(statuses) - len(honest)
        metric = next((snapshot.metric for snapshot in statuses if snapshot.metric), "value")
        mean = f"{fmean(values):.3f}" if values else "–"
        byzantine = f" ({bad} Byzantine{', banned' if self.before_ban else ''})" if bad else ""
        lone = None if self.alone is None or self.alone.snapshot is None else self.alone.snapshot.value
        beside = f"; alone {lone:.3f}" if lone is not None else ""
        return f"{len(statuses)} nodes{byzantine}, round {int(median(self._rounds() or [0]))}, {metric} {mean}{beside}"

    # --- the end ------------------------------------------------------------------------------------------

    def summary(self, wall_s: float) -> DemoSummary:
        """Return the result of a run that took so long; means are of honest nodes. Raises GossipError: no node answered."""
        statuses = [member.snapshot for member in self.members if member.snapshot is not None]
        if not statuses:
            raise GossipError("no node answered")
        rows = tuple(map(self.row, self.members))
        done = [row.value for row in rows if row.state == "done" and not row.byzantine]
        values = [value for value in done if isinstance(value, float)]
        committed = sum(status.exchanges.committed for status in statuses)
        return DemoSummary(
            swarm=self.swarm,
            wall_s=round(wall_s, 3),
            metric=statuses[0].metric,
            nodes=rows,
            ban=self.before_ban,
            rounds=max((m.snapshot.round for m in self._honest if m.snapshot is not None), default=0),
            mean=fmean(values) if values else None,
            min=min(values, default=None),
            max=max(values, default=None),
            consensus_distance=self.consensus_distance(),
            dense_bytes=round(4 * fmean(s.parameters or 0 for s in statuses)),
            bytes_per_exchange=sum(s.payload_bytes for s in statuses) / committed if committed else None,
            alone=self.lone_result(),
        )

    def lone_result(self) -> DemoAlone | None:
        """Return how the lone node did; None if it has not done as much as the others: then the two cannot be compared."""
        status = None if self.alone is None else self.alone.snapshot
        if status is None or (self.plan.seconds is None and status.state != "finished"):
            return None
        return DemoAlone(rounds=status.round, local_steps=status.local_steps, value=status.value)

    def row(self, member: Member) -> DemoNode:
        """Return how a node ended."""
        status = member.snapshot
        state: NodeState = "failed"
        back = status is not None and status.state in {"training", "finished"}
        if member.killed_at is not None or (member.reborn and not back and not member.down):
            state = "killed"  # and it is not back in time
        elif member.attack and self._is_banned(member):
            state = "banned"
        elif status is not None and (member.finished or (self.plan.seconds is not None and not member.down)):
            state = "done"
        elif status is not None and (status.state == "leaving" or (member.attack and not member.down)):
            state = "left"  # the run does not wait for Byzantine nodes
        described = DemoNode(peer=member.peer, state=state, byzantine=bool(member.attack))
        if status is None:
            return described
        return structs.replace(
            described,
            rounds=status.round,
            local_steps=status.local_steps,
            value=status.value,
            bytes_sent=status.bytes_sent,
            bytes_received=status.bytes_received,
            exchanges=status.exchanges,
            rejoined=status.rejoined,
            joined_late=status.joined_late,
        )

    def consensus_distance(self) -> float | None:
        """Return Ξ of the honest nodes' exported models: Ξ² = mean_i ‖x_i − x̄‖², of crews the sum over their stages."""
        import numpy as np  # noqa: PLC0415 - only needed at the very end
        from safetensors.numpy import load_file  # noqa: PLC0415

        files = [RunDir(member.run_dir).model for member in self._honest if not member.down]
        alike: dict[tuple[str, ...], list[np.ndarray]] = {}  # models as dicts of tensors: whole ones, or those of one stage
        for x in (load_file(file) for file in files if file.exists()):
            vector = np.concatenate([x[name].ravel().astype(np.float64) for name in sorted(x)])
            alike.setdefault(tuple(sorted(x)), []).append(vector)
        several = [np.stack(vectors) for vectors in alike.values() if len(vectors) > 1]
        if not several:
            return None
        return math.sqrt(sum(float(((stacked - stacked.mean(0)) ** 2).sum(1).mean()) for stacked in several))


def _statuses(members: Iterable[Member]) -> list[StatusSnapshot]:
    """Return the statuses of running nodes."""
    return [member.snapshot for member in members if member.snapshot is not None and not member.down]


def _values(statuses: Iterable[StatusSnapshot]) -> list[float]:
    return [status.value for status in statuses if status.value is not None]
