"""Whole honest nodes and one lying member, and the invariants of the honest at every moment."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
import trio

from starling.gossip.errors import PeerUnreachable, RemoteProtocolError
from starling.gossip.mix.broadcast_codec import anchor_digest
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import Beacon, Busy, Evidence, Lane, Message, NotNow, Pull, Pulled, Request, Solicit
from starling.node import identity
from starling.node.config.schema import Manifest
from starling.node.daemon.membership.records import records_of
from starling.node.daemon.membership.service import MAX_SENDING
from starling.node.daemon.running import RunningNode
from starling.node.net.api import Inbound
from starling.node.rpc import calls
from starling.node.simulate.virtual.inline_engine import InlineEngine
from starling.node.simulate.virtual.swarm import VirtualNode, VirtualSwarm
from starling.robust.reputation import SOFT, WEIGHTS
from tests.harness.legal_messages import Known, altered_by, signed_anew
from tests.harness.stepwise import Work
from tests.harness.swarms import assert_flows_cancel, drain, rounds_done, until

HONEST = 3  # from the start; another may join
NEWCOMER = 900  # its index
STEP_S = 0.2
DIAL_S = 0.1
MOST_TASKS = 60  # tasks of a node at a time, besides control messages being sent, also to members that the liar only names
MOST_ITEMS = 1500  # entries in all tables and queues of a node together
CALLS_PER_ROUND, CALLS_PER_FRAME = 5, 2  # calls of an engine: for the round itself, and for what the liar sent to anybody
VERIFIED, VERIFIED_PER_ROUND = 40, 12  # signatures by all nodes: at the start, and of pulled vectors
LOST_ROUNDS = 1
"""Of a node, beside one round in twenty, however often the liar keeps it waiting.

Who waits in vain is left behind by those that do not, and skips rounds: three or four, if it waits to its deadline. The peer it waited for
is then given no more than is usual for 4 rounds, for 8 the next time, then 16 (`gossip/exchange/lateness.py`), so in a schedule of some
30 rounds this could happen three times. None of those tried so far cost a whole round.
"""
LATE_ROUNDS = 3  # those that a newcomer begins late, and skips
JOINED_S = 20.0
"""Longest time until a newcomer trains: two of three honest sources have one model soon, but all may be asked twice while the liar sends
nothing, drips, or lets others doubt the newcomer."""
ROUND_S = 3.0  # longest round of an honest node, whatever a member does: see docs/protocol.md on deadlines
SAMPLED_ROUND_S = 2 * ROUND_S
"""The same of sampled rounds, which are two turns. In each, one woken in vain is replaced after `max_wait_s`, and vectors of those whose
turn it was not count after twice that. 3.15 s were seen where of five members one had crashed and another was late for everything."""
CLOCK_OFF_S = ROUND_S + 1.0  # by which slots of a node may have moved: it is in one for too long, and a liar's time slews its clock
MORE = 8
"""Rounds at the end in which the liar goes on as it does then. With three, nodes that one voice makes go on were found after 8, 7 and 41
schedules of pairs instead of 8, 7 and 9: steps that are lost a few in each round are a share only after several."""
MENDED = 12
"""Rounds after which honest outer parameters are equal again once all have ceased to count the liar: four, and eight for which a node may
rest between two repairs."""
JOINED_MENDED = 24
"""The same with a newcomer, which may be a part of a round late: it has others' outer parameters then only once it is level with them, and
comes closer by what they wait in a round. 14 and more were seen in one schedule of some 250."""
MIXED = 2  # rounds in which whoever ceased to count the liar has mixed without it
DEAD_S = 60.0  # longest time for which a crashed member is counted, whatever it said before
LOOK_S = 0.1  # virtual seconds between two looks: more of them are a tenth of all processor time
PASSING = {
    "ExchangeService._send_frames",
    "ExchangeService._call_engine",
    "BestEffort._send_counted",
    "PairwiseExchange.revoke",
    "PulledExchange.revoke",
    "Transfer._respond",
}
"""Tasks that come and go."""


@dataclass(slots=True)
class Alteration:
    """The next messages of one kind from the liar's node get another value in one field."""

    kind: type[Message]
    field: int
    value: int
    times: int


@dataclass(slots=True)
class Conduct:
    """Changes to the frames of the liar's node, which itself follows the protocol."""

    silent: set[Lane] = field(default_factory=set)  # lanes on which it sends nothing
    deaf: set[Lane] = field(default_factory=set)  # … and reads nothing
    twice: set[Lane] = field(default_factory=set)
    late_s: dict[Lane, float] = field(default_factory=dict)
    altered: list[Alteration] = field(default_factory=list)
    excuse: tuple[str, int] | None = None
    """What it says to all who ask for an exchange or a vector, and how many rounds it claims to be ahead of them; None: it answers."""
    withheld: dict[type[Message], int] = field(default_factory=dict)  # the next messages of a kind that it does not send
    second_tongue: set[str] = field(default_factory=set)  # peers to which it signs other vectors than to the rest
    whom: set[str] = field(default_factory=set)  # peers that this applies to, others see an honest node; empty: all

    def towards(self, peer: str) -> Conduct:
        """Return the changes to frames to and from a peer."""
        return self if not self.whom or peer in self.whom else Conduct()


class SearchedSwarm:
    """Use it as the life of a `Stepwise`."""

    def __init__(self, agreed: Manifest, seed: int, *, trusted: bool, attack: str = "") -> None:
        self._attacks: dict[int, str] = {}
        self.swarm = VirtualSwarm(agreed, seed=seed, step_cost_s=lambda _index: STEP_S, attacks=self._attacks)
        self.index = self._between()
        own = self.swarm.identity(self.index)
        self.attack(attack)
        self.liars = [own.peer_id]  # all its identities
        self.spoken: dict[type[Message], None] = {}  # kinds of messages that its node has sent
        members = (*(self.swarm.identity(it).peer_id for it in range(HONEST)), own.peer_id)
        self.known = Known(own, self.swarm.swarm, members, self.swarm.identity(0))
        self.conduct = Conduct()
        self.liar: VirtualNode | None = None
        self.frames: deque[tuple[Lane, bytes]] = deque(maxlen=200)  # past frames, for replays
        self.sent = 0  # frames of the liar that were delivered
        self.trusted = trusted
        self.calls: Counter[str] = Counter()  # calls of engines, by node
        self.signed = 0  # signatures in frames of the liar; those of records, which are cached, once
        self.verified = 0  # signatures verified by any node
        self._told: set[bytes] = set()
        self._services: Counter[str] = Counter()
        self._began: dict[str, tuple[int, int]] = {}  # (round, local steps) of each honest node when it trained first
        self._began_s: dict[str, float] = {}  # and when that was
        self.newcomer: VirtualNode | None = None
        self._newcomer_s = 0.0  # when it started
        self._last_round: dict[str, tuple[int, float]] = {}  # of each honest node, and since when it is known to be in it

    def _between(self, least: int = HONEST) -> int:
        """Return an index whose peer id lies between those of two honest nodes: it initiates to one and responds to the other."""
        ids = [self.swarm.identity(index).peer_id for index in range(HONEST)]
        return next(index for index in range(least, NEWCOMER) if min(ids) < self.swarm.identity(index).peer_id < max(ids))

    def attack(self, name: str) -> None:
        """Let the liar's engine attack in this way from its next start on; with no name it is honest."""
        self._attacks.clear()
        if name:
            self._attacks[self.index] = name

    def kinds(self, numbers: Iterable[int]) -> list[type[Message]]:
        """Return kinds of messages that the liar's node sends, by numbers of any size: others need not be altered or withheld."""
        kinds = list(self.spoken)
        return list(dict.fromkeys(kinds[number % len(kinds)] for number in numbers))

    def change_identity(self) -> None:
        """Let the liar, which is not there, come back as another."""
        self.index = self._between(self.index + 1)
        self.known.identity = self.swarm.identity(self.index)
        self.liars.append(self.known.identity.peer_id)
        self.known.members += (self.liars[-1],)

    @property
    def honest(self) -> list[VirtualNode]:
        """Return the honest nodes that train, or have."""
        return [it for it in self.swarm.nodes.values() if it.peer_id in self._began]

    @property
    def peers(self) -> list[str]:
        return [virtual.peer_id for virtual in self.honest]

    async def live(self, serve: Work) -> None:
        public_key_of = identity.public_key_of

        def counted(peer: str) -> bytes:  # called for every signature that is verified
            self.verified += 1
            return public_key_of(peer)

        identity.public_key_of = counted
        try:
            await self._live(serve)
        finally:
            identity.public_key_of = public_key_of

    async def _live(self, serve: Work) -> None:
        async with self.swarm.running(HONEST):
            await self.come()
            await until(lambda: rounds_done(self.swarm, 2), every_s=LOOK_S)
            for virtual in self.swarm.nodes.values():
                self._take_part(virtual)
                if self.trusted:
                    virtual.node.policy.trust(self.known.identity.peer_id)
            self._services = Counter.__and__(*(self._tasks(virtual) for virtual in self.honest[:2]))
            for name in PASSING:
                del self._services[name]
            await serve()

    async def join(self) -> None:
        """Start another honest node."""
        self.newcomer, self._newcomer_s = await self.swarm.start(NEWCOMER), trio.current_time()
        self.known.members += (self.newcomer.peer_id,)

    def _admit(self) -> None:
        """Count the newcomer among the honest nodes once it trains, which it must soon."""
        new = self.newcomer
        if new is None or new.peer_id in self._began:
            return
        if new.node.progress.state == "training":
            self._take_part(new)
        else:
            assert not new.ended.is_set(), "the newcomer ended"
            waited = trio.current_time() - self._newcomer_s
            assert waited <= JOINED_S, f"the newcomer is {new.node.progress.state} after {waited:.1f} s"

    def _take_part(self, virtual: VirtualNode) -> None:
        """Count what a node does from now on."""
        self._began_s[virtual.peer_id] = trio.current_time()
        self._began[virtual.peer_id] = virtual.node.progress.round, virtual.node.progress.computed.steps
        engine, call = virtual.node.running.engine, virtual.node.running.engine.call

        async def counted(request: calls.Request) -> calls.Reply:
            self.calls[virtual.peer_id] += 1
            return await call(request)

        engine.call = counted

    async def come(self) -> None:
        """Start the liar, for the first time or with a new incarnation."""
        self.liar = await self.swarm.start(self.index)
        del self.swarm.nodes[self.index]
        network = self.liar.node.network
        send, arrive = network.send, network.arrive

        async def sent(peer: str, lane: Lane, frame: bytes) -> None:
            for each in self._forged(peer, lane, frame):
                await trio.sleep(self.conduct.towards(peer).late_s.get(lane, 0.0))
                self._count(lane, each)
                await send(peer, lane, each)

        def arrived(inbound: Inbound) -> None:
            self.frames.append((inbound.lane, inbound.frame))
            asked = self._learn(inbound.peer, inbound.lane, inbound.frame)
            conduct = self.conduct.towards(inbound.peer)
            if conduct.excuse is not None and isinstance(asked, Request | Solicit | Pull):
                for excuse in excuses(asked, *conduct.excuse):
                    trio.lowlevel.spawn_system_task(self.tell, inbound.peer, "exchange", encode(excuse), 1)
            elif inbound.lane not in conduct.deaf:
                arrive(inbound)

        network.send, network.arrive = sent, arrived
        self._say = send

    async def go(self, *, in_order: bool) -> None:
        """Crash the liar, or let it leave."""
        if self.liar is not None:
            self.swarm.nodes[self.index], self.liar = self.liar, None
            await (self.swarm.leave if in_order else self.swarm.crash)(self.index)

    def _is_refused_by(self, peer: str) -> bool:
        me = self.known.identity.peer_id
        return any(it.node.network.refuses(me) for it in self.swarm.nodes.values() if it.peer_id == peer)

    async def tell(self, peer: str, lane: Lane, frame: bytes, times: int) -> None:
        """Let the liar send a frame of its own, repeatedly."""
        self.frames.append((lane, frame))
        for _ in range(times):
            if self.liar is not None and not self._is_refused_by(peer):
                self._count(lane, frame)
                with suppress(PeerUnreachable), trio.move_on_after(DIAL_S):
                    await self._say(peer, lane, frame)

    def _forged(self, peer: str, lane: Lane, frame: bytes) -> Iterator[bytes]:
        conduct = self.conduct.towards(peer)
        if lane in conduct.silent:
            return
        honest = self._learn(peer, lane, frame)
        if honest is not None:
            self.spoken[type(honest)] = None
            if conduct.withheld.get(type(honest), 0):
                conduct.withheld[type(honest)] -= 1
                return
        if isinstance(honest, Pulled) and peer in self.conduct.second_tongue:
            frame = encode(signed_anew(honest, self.known))
        for it in conduct.altered:
            if isinstance(honest, it.kind) and it.times:
                it.times -= 1
                victim = next((virtual for virtual in self.honest if virtual.peer_id == peer), self.honest[0])
                frame = encode(altered_by(it.field, it.value, honest, self.known, victim))
        self.frames.append((lane, frame))
        yield frame
        if lane in conduct.twice:
            yield frame

    def _count(self, lane: Lane, frame: bytes) -> None:
        self.sent += 1
        with suppress(RemoteProtocolError):
            message = decode(lane, "", frame)
            records = len(records_of(message)) if frame not in self._told else 0
            self.signed += records + len(getattr(message, "claims", ())) + len(getattr(message, "revocations", ()))
            self.signed += 2 if isinstance(message, Evidence) else isinstance(message, Beacon | Pulled)
        self._told.add(frame)

    def _learn(self, peer: str, lane: Lane, frame: bytes) -> Message | None:
        """Decode a frame to or from a peer; None: it breaks a bound, as results of the liar's own numbers may."""
        with suppress(RemoteProtocolError):
            message = decode(lane, peer, frame)
            self.known.seen.append((peer, message))
            return message
        return None

    async def check(self) -> None:
        """Assert the invariants of every moment."""
        self._admit()
        ids, rounds = set(self.peers), max(virtual.node.progress.round for virtual in self.honest)
        most = VERIFIED * (1 + len(self.liars)) + VERIFIED_PER_ROUND * rounds + (HONEST + 2) * self.signed
        assert self.verified <= most, f"{self.verified} signatures verified in {rounds} rounds, {self.signed} were the liar's"
        for virtual in self.honest:
            me, node = virtual.peer_id, virtual.node
            assert not virtual.ended.is_set(), f"{me} ended"
            assert isinstance(node.phase, RunningNode)
            assert node.progress.state == "training", f"{me} is {node.progress.state}"
            assert bool(torch.isfinite(virtual.vector).all()), f"the model of {me} is not finite"
            for other in ids - {me}:
                assert node.policy.allows(other), f"{me} shut {other} out: {node.events.faults}"
                assert not node.network.refuses(other)
                reasons = node.events.faults.get(other, {})
                assert all(WEIGHTS.get(reason) == SOFT for reason in reasons), f"{me} blames {other}: {reasons}"
            self._check_goes_on(virtual)
            self._check_clock(virtual)
            gone = [event.text for event in node.events.recent if event.name in {"peer_died", "peer_reborn"}]
            assert not any(other in text for other in ids for text in gone), f"{me} held an honest node dead: {gone}"
            tasks = self._tasks(virtual)
            missing = self._services - tasks
            assert not missing, f"{me}: {missing} ended"
            sending = tasks.pop("BestEffort._send_counted", 0)
            assert sending <= MAX_SENDING * len(node.running.membership.table), f"{me} sends {sending} messages at a time"
            assert tasks.total() <= MOST_TASKS, tasks.most_common(5)
            rounds, steps = (now - at for now, at in zip((node.progress.round, node.progress.computed.steps), self._began[me], strict=True))
            most = CALLS_PER_ROUND * (rounds + 1) + CALLS_PER_FRAME * (self.sent + 1)
            assert self.calls[me] <= most, (
                f"{self.calls[me]} calls of the engine of {me} in {rounds} rounds, {self.sent} frames of the liar"
            )
            if self.swarm.manifest.pace.kind == "steps":
                due = rounds * self.swarm.manifest.pace.local_steps
                spared = (LOST_ROUNDS + LATE_ROUNDS * (virtual is self.newcomer)) * self.swarm.manifest.pace.local_steps
                assert steps >= 0.95 * due - spared, f"{me} did {steps} of {due} local steps"

    def _check_goes_on(self, virtual: VirtualNode) -> None:
        """Assert that a node does not stay in a round."""
        now, at = trio.current_time(), virtual.node.progress.round
        last, since = self._last_round.get(virtual.peer_id, (-1, now))
        if at != last:
            self._last_round[virtual.peer_id] = at, now
        most = SAMPLED_ROUND_S if self.swarm.manifest.pace.kind == "sampled" else ROUND_S
        assert at != last or now - since <= most, f"{virtual.peer_id} is in round {at} for {now - since:.1f} s"

    def _check_clock(self, virtual: VirtualNode) -> None:
        """Assert that slots take as long as agreed."""
        pace, me = self.swarm.manifest.pace, virtual.peer_id
        if pace.kind == "clock":
            off_s = (virtual.node.progress.round - self._began[me][0]) * pace.slot_s - (trio.current_time() - self._began_s[me])
            assert abs(off_s) <= CLOCK_OFF_S, f"{me}: slots moved by {off_s:.1f} s"

    async def settle(self) -> None:
        """Let all continue; then silence the liar permanently, and assert that nothing of it remains."""
        if self.newcomer is not None:
            await until(lambda: self.newcomer.node.progress.state == "training", JOINED_S, LOOK_S)
        least = min(virtual.node.progress.round for virtual in self.swarm.nodes.values())
        await until(lambda: rounds_done(self.swarm, least + MORE), MORE * ROUND_S, LOOK_S)
        await self.go(in_order=False)
        await self.check()
        for virtual in self.honest:
            held = Counter(dict(items(virtual.node)))
            assert held.total() <= MOST_ITEMS, held.most_common(8)
        if self.swarm.manifest.mix.kind == "pet":
            for virtual in self.honest:
                for liar in self.liars:
                    await virtual.node.running.exchange.revoke(liar)
            await self._finish()
            await drain(self.swarm)
            assert_flows_cancel(self.swarm)
        if self.swarm.manifest.mix.kind == "sparse_outer":
            liars = set(self.liars)
            await until(lambda: not any(liars & set(it.node.running.membership.members) for it in self.honest), DEAD_S, LOOK_S)
            last = max(virtual.node.progress.round for virtual in self.honest)
            most = MENDED if self.newcomer is None else JOINED_MENDED
            with trio.move_on_after(most * ROUND_S):
                await until(lambda: self._mended(last + MIXED) or rounds_done(self.swarm, last + most), every_s=LOOK_S)
            if not self._mended(last + MIXED):
                await self._finish(1)
                assert self._mended(last + MIXED), "honest anchors stay parted"

    def _mended(self, least: int) -> bool:
        """Return whether all honest nodes are in one round, at least this one, with the same anchor: they then keep it in common."""
        rounds = {virtual.node.progress.round for virtual in self.honest}
        return len(rounds) == 1 and min(rounds) >= least and len({anchor_digest(virtual.vector) for virtual in self.honest}) == 1

    async def _finish(self, more: int = 3) -> None:
        """Let all honest nodes finish the same round, this many after the furthest one."""
        last = max(virtual.node.progress.round for virtual in self.honest) + more
        for agreed in (self.swarm.manifest, self.honest[0].node.running.context.manifest):
            msgspec.structs.force_setattr(agreed.pace, "rounds", last)
        await until(lambda: all(virtual.node.progress.state == "finished" for virtual in self.honest), 20 * ROUND_S, LOOK_S)

    def _tasks(self, virtual: VirtualNode) -> Counter[str]:
        """Count the tasks of a node by name."""
        mine = [task for task in _below(trio.lowlevel.current_root_task()) if _locals(task).get("virtual") is virtual]
        return Counter(".".join(task.name.partition(".<")[0].split(".")[-2:]) for root in mine for task in _below(root))


def excuses(asked: Request | Solicit | Pull, reason: str, ahead: int) -> list[Message]:
    """Return what a member says that is this many rounds ahead and does not do what was asked. Whoever pulls may be put off before."""
    at = max(0, asked.round + ahead)
    if not isinstance(asked, Pull):
        reason = {"view": "view", "wait": "busy"}.get(reason, reason)
        return [Busy(asked.inc, asked.seq if isinstance(asked, Request) else 0, reason, at)]
    return [NotNow(asked.nonce, at, {"view": "busy"}.get(reason, reason))]


def _locals(task: trio.lowlevel.Task) -> dict[str, Any]:
    frame = getattr(task.coro, "cr_frame", None)
    return frame.f_locals if frame is not None and task.name.endswith("VirtualSwarm._live") else {}


def _below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _below(child)


def items(root: object) -> Iterator[tuple[str, int]]:
    """Yield sizes of all tables and queues of a node by location, except engines and the shared network."""
    seen: set[int] = set()
    under: list[tuple[str, object]] = [("node", root)]
    while under:
        path, it = under.pop()
        if id(it) in seen or isinstance(it, torch.Tensor | InlineEngine | type):
            continue
        seen.add(id(it))
        match it:
            case dict():
                yield path, len(it)
                under += [(f"{path}[]", each) for pair in it.items() for each in pair]
            case list() | deque() | set() | frozenset() | tuple():
                yield path, len(it)
                under += [(f"{path}[]", each) for each in it]
            case _ if type(it).__module__.startswith("starling.") and type(it).__name__ not in {"MemoryHub", "NodeSetup"}:
                names = [*getattr(it, "__dict__", ()), *(name for kind in type(it).__mro__ for name in getattr(kind, "__slots__", ()))]
                under += [(f"{path}.{name}", getattr(it, name, None)) for name in names]
