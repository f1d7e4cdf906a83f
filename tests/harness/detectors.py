"""A whole swarm of detectors in virtual time: an event queue, and faults as rules. Signatures are faked, time is exact."""

import heapq
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import msgspec

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.membership.detector import Detector
from starling.gossip.membership.events import ClockSample, Died, Output, Send
from starling.gossip.membership.local_record import LocalRecord
from starling.gossip.membership.member_list import MAX_MEMBERS, MemberList
from starling.gossip.membership.swarm_view import Timing
from starling.gossip.seeds import derive
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import Hello, Record, Revocation

TIMING = Timing(probe_s=1.0, timeout_s=0.5, suspicion_s=2.0, sync_s=5.0, helpers=2)
SWARM = "s" + "a" * 32

Rule = Callable[[str, str, float], bool]
"""(source, target, now) -> whether the message is lost."""


def sign(record: Record) -> Record:
    return msgspec.structs.replace(record, signature=b"by " + record.peer.encode())


def verify(record: Record) -> bool:
    return record.signature == b"by " + record.peer.encode() and record.swarm == SWARM


def record(peer: str, incarnation: int = 1, version: int = 0, status: str = "alive", addresses=("/a",)) -> Record:
    return sign(Record(peer, SWARM, incarnation, version, status, tuple(addresses), b""))


def names(n: int) -> list[str]:
    return [f"p{i:03d}" for i in range(n)]


def sent(outputs: list[Output], kind: type = object) -> list[tuple[str, object]]:
    """Return (peer, message) of the messages of this kind."""
    return [(o.peer, o.message) for o in outputs if isinstance(o, Send) and isinstance(o.message, kind)]


def detector(peer: str, now: float = 0.0, *, incarnation: int = 1, seed: int = 0, timing: Timing = TIMING) -> Detector:
    return Detector(LocalRecord(record(peer, incarnation), sign), MemberList(verify, OpenGate()), timing, seed, lambda t: t, now)


def knowing(*others: str) -> Detector:
    """Return a detector that has met these peers long ago, and starts nothing by the clock."""
    core = detector("me")
    for peer in others:
        core.receive(peer, Hello(record(peer), core.member_list.digest, 0.0), 0.0)
    quiet(core)
    core.spreading.dissemination.due_at = inf
    return core


def quiet(core: Detector) -> None:
    """End all probes of a detector; no probe or comparison begins by the clock."""
    no_probes(core)
    core.prober.probe_at = core.spreading.sync_at = inf


def no_probes(core: Detector) -> None:
    for probe in core.prober.probes.overdue(inf):
        core.prober.probes.drop(probe)


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Admits every peer; nothing can be revoked."""

    closed: bool = False
    revoked: tuple[Revocation, ...] = ()
    digest: bytes = bytes(16)

    def fault(self, record: Record) -> str:
        return ""

    def admits(self, record: Record) -> bool:
        return True

    def answer(self, record: Record) -> None:
        return None

    def revoke(self, revocations) -> list[Revocation]:
        if revocations:
            raise ValueError("nothing_to_revoke")
        return []

    def changed(self) -> bool:
        return False


@dataclass(slots=True)
class DetectorSwarm:
    """Detectors that joined through the first one, each `delay_s` from every other; handling a message or a timer takes `cost_s`."""

    n: int
    seed: int = 0
    delay_s: float = 0.02
    cost_s: float = 0.0
    timing: Timing = TIMING
    lost: Rule = lambda source, target, now: False
    record_of: Callable[[str, int], Record] = record
    """(peer, incarnation) -> its first record."""
    peers: Sequence[str] = ()  # `names` unless given
    max_members: int = MAX_MEMBERS  # of each list
    now: float = 0.0
    nodes: dict[str, Detector] = field(default_factory=dict)
    events: list[tuple[float, str, Output]] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    frames: int = 0
    octets: Counter[str] = field(default_factory=Counter)  # bytes sent, by kind of message
    _queue: list[tuple[float, int, str, tuple[str, bytes] | None]] = field(default_factory=list)
    _order: itertools.count = field(default_factory=itertools.count)
    _due: dict[str, float] = field(default_factory=dict)  # timer of each node in the queue
    _busy: dict[str, float] = field(default_factory=dict)  # time at which a node finishes its last message
    _inbox: dict[str, deque[tuple[str, bytes]]] = field(default_factory=lambda: defaultdict(deque))

    def __post_init__(self) -> None:
        for peer in self.peers or names(self.n):
            self.add(peer)

    def add(self, peer: str, incarnation: int = 1) -> None:
        """Start a node and let it greet the first live one."""
        bootstrap = next(iter(self.nodes), None)
        self.nodes[peer] = Detector(
            LocalRecord(self.record_of(peer, incarnation), sign),
            MemberList(verify, OpenGate(), max_members=self.max_members),
            self.timing,
            self.seed,
            lambda t: t,
            self.now,
        )
        self.do(peer, [] if bootstrap is None else self.nodes[peer].greet(bootstrap, self.now))

    def crash(self, peer: str, *, noticed: bool = False) -> None:
        """Crash a node; `noticed`: the network reports the broken connection to the others."""
        del self.nodes[peer]
        if noticed:
            for other, node in self.nodes.items():
                self.do(other, node.connection_lost(peer, self.now))

    def pause(self, peer: str, until: float) -> None:
        """Suspend a node, as SIGSTOP does: arriving messages wait, timers do not fire."""
        self._busy[peer] = until
        self.put(until, peer, None)

    def do(self, source: str, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Send):
                frame = encode(output.message)
                self.frames += 1
                self.octets[type(output.message).__name__] += len(frame)
                if not self.lost(source, output.peer, self.now):
                    self.put(self.now + self.delay_s, output.peer, (source, frame))
            elif not isinstance(output, ClockSample):
                self.events.append((self.now, source, output))
        self._set_timer(source)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> float:
        """Advance time until then, or until `done`; return the time."""
        while not done():
            if not self._queue or self._queue[0][0] > until:
                self.now = until
                break
            self.now, _, target, frame = heapq.heappop(self._queue)
            if target not in self.nodes:
                continue
            if frame is not None:
                self._inbox[target].append(frame)
            elif self._due.get(target) == self.now:
                del self._due[target]
            if self.now >= self._busy.get(target, -inf):
                self._handle(target)
        return self.now

    def _handle(self, peer: str) -> None:
        """Handle one message or timer, and the next when that is done."""
        node, inbox = self.nodes[peer], self._inbox[peer]
        if inbox:
            source, frame = inbox.popleft()
            try:
                self.do(peer, node.receive(source, decode("control", source, frame), self.now))
            except RemoteProtocolError as error:
                self.faults.append((error.peer, error.reason))
        elif node.deadline <= self.now:
            self.do(peer, node.tick(self.now))
        else:
            self._set_timer(peer)
            return
        if self.cost_s or inbox:
            self._busy[peer] = self.now + self.cost_s
            self.put(self._busy[peer], peer, None)

    def _set_timer(self, peer: str) -> None:
        deadline = self.nodes[peer].deadline if peer in self.nodes else inf
        if deadline < self._due.get(peer, inf):
            self._due[peer] = max(deadline, self.now)
            self.put(self._due[peer], peer, None)

    def put(self, at: float, peer: str, frame: tuple[str, bytes] | None) -> None:
        heapq.heappush(self._queue, (at, next(self._order), peer, frame))

    def agreed(self, members: list[str] | None = None) -> bool:
        """Return whether all live nodes list exactly these members, by default the live ones."""
        expected = tuple(sorted(self.nodes if members is None else members))
        return all(node.member_list.alive == expected for node in self.nodes.values())

    def deaths(self) -> list[tuple[float, str, str]]:
        return [(at, who, event.peer) for at, who, event in self.events if isinstance(event, Died)]


def loss(share: float, seed: int) -> Rule:
    """Lose this share of the messages, by a fixed sequence."""
    counter = itertools.count()
    return lambda source, target, now: derive(seed, "loss", next(counter)) < share * 2**63
