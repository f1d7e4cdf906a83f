"""A crew of machines in virtual time: links that delay, lose and reorder, and engines whose model is a digest of all their inputs."""

import heapq
import random
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import count

from msgspec import structs

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.pipeline import stage_assignments
from starling.gossip.pipeline.copies import Copies
from starling.gossip.pipeline.crew import Crew
from starling.gossip.pipeline.crew_commands import (
    Abandon,
    ApplyStep,
    Blame,
    Computed,
    DoTask,
    Evaluated,
    FreeStage,
    GiveState,
    Note,
    PushState,
    Send,
    States,
    Summarize,
    Trained,
    Unfit,
    Unfollow,
    UseState,
)
from starling.gossip.pipeline.crew_step import Plan
from starling.gossip.pipeline.meeting import KEPT
from starling.gossip.pipeline.minutes import body
from starling.gossip.pipeline.schedule import ahead, task
from starling.gossip.pipeline.stage import Part
from starling.gossip.pipeline.waiting import Keys, Waiting
from starling.gossip.wire.schema import Minutes, Piece, Ready

POLL_S, TASK_S, BYTES, PIECE_BYTES = 0.1, 0.01, 8, 4
AVOIDED_S = 600.0  # as long as a node avoids one whose seat it freed
EXCUSES = ("truth", "none", "before", "behind", "both", "part", "two_parts", "chance")
FORGED = b"forged"
BATCHES = 2  # of held-out data


def signed(peer: str, message: bytes) -> bytes:
    """Return 64 bytes that only `peer` makes."""
    return blake2b(message, key=peer.encode()).digest()


def verified(peer: str, signature: bytes, message: bytes) -> bool:
    """Return whether `peer` signed a message."""
    return signature == signed(peer, message)


def resigned(node, ready):
    """Return what a node says at a meeting with its signature, also that it called it, if it did."""
    called = tuple(node.machine.steps.waiting.call(ready.turn, ready.step) if it.stage == node.stage else it for it in ready.waits)
    ready = structs.replace(ready, waits=called)
    return structs.replace(ready, signature=signed(node.peer, body(node.stage, ready)))


def mixed(*parts) -> bytes:
    """Return 8 bytes that depend on all arguments."""
    return blake2b(repr(parts).encode(), digest_size=BYTES).digest()


@dataclass
class Engine:
    """A stage's engine. Its model depends neither on the crew's number nor on the machine."""

    stage: int
    x: bytes = bytes(BYTES)
    step: int = 0
    crew: int = -1
    points: dict[int, bytes] = field(default_factory=dict)
    seen: list[object] = field(default_factory=list)

    def answer(self, work):
        match work:
            case UseState(action, crew, step, state):
                return self._use(action, crew, step, state)
            case DoTask(way, _, step, micro, payload, _, evaluate):
                if evaluate:
                    return Computed(payload + b"e", b"")
                assert step == self.step
                if payload == FORGED:
                    return Unfit("activation_bad_shape")
                self.seen.append((way, micro, payload))
                return Computed(mixed(self.stage, way, step, micro, payload), b"")
            case Summarize():
                return Part(float(self.stage), loss=1.0, value=0.5, samples=1)
            case ApplyStep(steps=steps):
                self.x, self.step, self.seen = mixed(self.x, self.step, self.seen), steps, []
            case Abandon():
                self.seen = []
        return None

    def _use(self, action, crew, step, state):
        if crew != self.crew:
            if action != "carry":
                self.points, self.step = {}, self.step if self.crew == -1 else 0
            self.crew = crew
        if action == "take":
            self.points[step] = state
        if action in {"take", "back"}:
            self.x, self.step, self.seen = self.points[step], step, []
        if action == "keep":
            self.step = step
            self.points = {step: x for step, x in self.points.items() if step < self.step} | {self.step: self.x}
        self.points = dict(sorted(self.points.items())[-KEPT:])
        return States(self.step, tuple(self.points))


@dataclass
class Node:
    """One machine and its shell."""

    peer: str
    stage: int
    machine: Crew
    engine: Engine
    rests_s: float = 0.0  # between rounds
    slower: float = 1.0  # factor of its engine's time
    lost: float = 0.0  # share of its frames lost in each direction
    mute: bool = False
    forges: str = ""  # kinds of frames whose payload it replaces
    withholds: str = ""  # kinds of frames that it does not send; it frees and blames nobody then
    excuse: str = "truth"  # what it says that it waits for, one of EXCUSES
    only_to: str = ""  # the one peer that it treats so; "": all
    says: tuple[dict[str, object], ...] = ()  # what it says at meetings instead of the truth: at each one of these, by chance
    paused: bool = False  # by its owner: it has no steps to do
    gives_part: bool = False  # it sends no state but the first piece
    goes_back_every: int = 0  # rounds after which it returns to its oldest state by itself; 0: never
    incarnation: int = 1
    calls_s: float = 0.0  # seconds after which it calls a meeting again; 0: never without a reason
    aside: bool = False
    dead: bool = False
    round: int = 0
    avoided: set[str] = field(default_factory=set)
    left: dict[str, float] = field(default_factory=dict)
    unfollowed: set[str] = field(default_factory=set)
    last: tuple[str, ...] = ()
    carried: bool = False
    notes: list[str] = field(default_factory=list)
    freed: list[tuple[float, str]] = field(default_factory=list)
    evaluations: list[Part | None] = field(default_factory=list)

    @property
    def lies(self) -> bool:
        """Return whether it breaks the rules; then its accusations do not count."""
        return bool(self.withholds or self.says or self.calls_s or self.gives_part)


class World:
    """A crew of `stages` that does rounds of `k` local steps. The share `lost` of all frames is lost; others take up to `delay_s`."""

    def __init__(self, stages, *, seed=0, k=3, micro=3, lost=0.0, delay_s=0.02, reorders=False, evaluates=False, task_s=TASK_S):
        self.chance, self.stages, self.k, self.micro = random.Random(seed), stages, k, micro
        self.lost, self.delay_s, self.reorders, self.evaluates, self.task_s = lost, delay_s, reorders, evaluates, task_s
        self.alone = True  # there is no other crew
        self.state_s = TASK_S  # that a state is on its way to a new machine
        self.now, self.order, self.events = 0.0, count(), []
        self.nodes, self.claims, self.lines, self.blamed = {}, {}, {}, []
        for stage in range(stages):
            self.start(f"p{stage}", stage)

    def start(self, peer, stage):
        """Let a machine take a stage in any crew with a free one."""
        plan = Plan(self.micro, 0, self.k, self.k, None)
        keys = Keys(partial(signed, peer), verified)
        machine = Crew(stage, self.stages, plan, Copies(BYTES, PIECE_BYTES), 0, BATCHES if stage == 0 else 0, keys)
        node = self.nodes[peer] = Node(peer, stage, machine, Engine(stage))
        self.at(0.0, self.look, node)
        self.at(0.0, self._round, node)
        return node

    def lose_engine(self, node):
        """Let a node's engine die; half a second later another one begins."""
        node.machine.give_up()
        self.events = [each for each in self.events if each[2] == self.look or not each[3] or each[3][0] is not node]
        heapq.heapify(self.events)
        self.at(0.5, self._round, node)

    def restart(self, node):
        """Let a node's process end and begin anew, with its memory of the crew lost and its states kept."""
        node.dead, engine = True, node.engine
        again = self.start(node.peer, node.stage)
        again.engine, again.incarnation, again.machine.states.step = engine, node.incarnation + 1, engine.step
        return again

    def kill(self, peer):
        """Remove a machine, and let all others know."""
        self.nodes.pop(peer).dead = True
        self.claims.pop(peer, None)

    def at(self, after_s, call, *arguments):
        """Do something later."""
        heapq.heappush(self.events, (self.now + after_s, next(self.order), call, arguments))

    def run(self, done, limit_s):
        """Advance time until `done` returns true; return whether that was within the limit."""
        until = self.now + limit_s
        while not done():
            if self.events[0][0] > until:
                self.now = until
                return False
            self.now, _, call, arguments = heapq.heappop(self.events)
            call(*arguments)
        return True

    def steps(self):
        """Return the smallest number of local steps of live machines, without those set aside."""
        return min(node.engine.step for node in self.nodes.values() if not node.aside)

    def safe(self):
        """Return whether every stage's state has a copy elsewhere."""
        return all(node.machine.states.safe for node in self.nodes.values())

    def look(self, node):
        """Let a node look up its crew and take its stage."""
        if node.dead:
            return
        self.at(POLL_S, self.look, node)
        self._sit(node)
        number = self.claims[node.peer]
        crew = stage_assignments.place(number, self.stages)[0]
        peers = stage_assignments.whole(self.claims, self.stages).get(crew)
        if peers is None or peers[node.stage] != node.peer or node.avoided.intersection(peers):
            left = [
                peer
                for peer in node.machine.company.peers
                if peer in self.claims and peer not in node.avoided and stage_assignments.place(self.claims[peer], self.stages)[0] != crew
            ]
            company = node.machine.company
            gone = stage_assignments.away(self.claims, self.stages, node.peer, company.crew, company.peers)
            self._do(node, node.machine.parted(left, self.now, away=gone))
        else:
            node.last = peers
            name = stage_assignments.digest((peer, self.nodes[peer].incarnation) for peer in peers)
            self._do(node, node.machine.joined(crew, name, peers, self.now, alone=self.alone, carried=node.carried))

    def _sit(self, node):
        here = stage_assignments.place(self.claims.get(node.peer, 1), self.stages)[0]
        elsewhere = {
            peer for peer in node.last if stage_assignments.place(self.claims.get(peer, 1 + here * self.stages), self.stages)[0] != here
        }
        node.left = {peer: node.left.get(peer, self.now + AVOIDED_S) for peer in elsewhere}
        left = {peer for peer, until in node.left.items() if until > self.now}
        going = set(node.last) - node.avoided - node.unfollowed
        wanted = stage_assignments.chosen(self.claims, self.stages, node.peer, node.stage, node.avoided or left, going)
        if wanted != self.claims.get(node.peer):
            crew = stage_assignments.place(wanted, self.stages)[0]
            there = {peer for peer, number in self.claims.items() if stage_assignments.place(number, self.stages)[0] == crew}
            node.carried = bool(node.last) and (not there or not there.isdisjoint(node.last))
            self.claims[node.peer] = wanted

    def _for_a_while(self, peers, peer):
        if peer not in peers:
            peers.add(peer)
            self.at(AVOIDED_S, peers.discard, peer)

    def _round(self, node):
        if not node.dead:
            self._do(node, node.machine.train(node.round, 0 if node.paused else self.k, self.now))

    def call(self, node):
        """Let a node call a meeting, of all others or of one, again and again."""
        roll, company, state = node.machine.roll, node.machine.company, node.machine.states
        if company.whole and roll.own is not None:
            turn = roll.called + 1
            call = structs.replace(roll.own, turn=turn, step=state.step, waits=(node.machine.steps.waiting.call(turn, state.step),))
            call = resigned(node, call)
            others = [peer for peer in company.peers if peer != node.peer]
            for peer in [node.only_to] if node.only_to else self.chance.choice([others, others[:1], others[-1:]]):
                self.send(node, peer, call)
        self.at(node.calls_s, self.call, node)

    def measure(self, node):
        """Let a node request an evaluation."""
        if not node.dead:
            self._do(node, node.machine.evaluate(node.round, self.k, self.now))

    def _do(self, node, commands):
        for command in commands:
            match command:
                case Send(peer, frame):
                    self.send(node, peer, frame)
                case Note(name):
                    node.notes.append(name)
                case FreeStage() | Blame() if node.lies:
                    pass
                case Blame(peer, reason):
                    self.blamed.append((peer, reason))
                case FreeStage(peer):
                    node.freed.append((self.now, peer))
                    self._for_a_while(node.avoided, peer)
                case Unfollow(peer):
                    self._for_a_while(node.unfollowed, peer)
                case PushState(peer, stage, step):
                    self._state(node, peer, stage, step, node.engine.points[step])
                    self.at(TASK_S, node.machine.pushed)
                case GiveState(peer, stage, step, state):
                    self._state(node, peer, stage, step, state, self.state_s)
                    self.at(self.state_s, self._done, node, None)
                case Trained(round):
                    node.round = round + 1
                    if node.goes_back_every and node.round % node.goes_back_every == 0:
                        node.engine.step, node.engine.x = min(node.engine.points.items())
                        node.machine.states.step = node.engine.step
                    self.at(node.rests_s, self.measure if self.evaluates else self._round, node)
                case Evaluated(last):
                    node.evaluations.append(last)
                    self.at(0.0, self._round, node)
                case _:
                    self.at(self.task_s * node.slower * self.chance.random(), self._work, node, command)

    def _work(self, node, work):
        if not node.dead:
            self._done(node, node.engine.answer(work))

    def _done(self, node, result):
        if not node.dead:
            self._do(node, node.machine.done(result, self.now))

    def _state(self, node, peer, stage, step, state, lasts_s=0.0):
        for offset in range(0, BYTES, PIECE_BYTES):
            piece = Piece(node.machine.company.name, stage, step, BYTES, offset, state[offset : offset + PIECE_BYTES])
            self.at(lasts_s * (offset + PIECE_BYTES) / (BYTES + PIECE_BYTES), self.send, node, peer, piece)

    def send(self, node, peer, frame):
        """Let a node send a frame, or what it sends in its place."""
        there = self.nodes.get(peer, node)
        if node.mute or self.chance.random() < max(self.lost, node.lost, there.lost):
            return
        if isinstance(frame, Minutes) and node.says:
            return  # what it has said itself is in them
        if node.only_to in {"", peer}:
            if type(frame).__name__ in node.withholds.split():
                return
            if isinstance(frame, Ready) and frame.turn:
                said = node.says[mixed(node.peer, frame.turn)[0] % len(node.says)] if node.says else {}
                frame = resigned(node, structs.replace(frame, **said))
            if isinstance(frame, Piece) and node.gives_part and frame.offset and frame.stage != node.stage:
                return
        if isinstance(frame, Ready) and node.lies:
            frame = structs.replace(frame, freed=())
            frame = self._excused(node, there, frame) if node.withholds and not frame.turn else frame
        if type(frame).__name__ in node.forges:
            frame = structs.replace(frame, payload=FORGED)
        arrives = self.now + self.delay_s * self.chance.random()
        if not self.reorders:
            arrives = self.lines[node.peer, peer] = max(arrives, self.lines.get((node.peer, peer), 0.0))
        self.at(arrives - self.now, self._arrive, node.peer, peer, frame)

    def _excused(self, liar, to, frame):
        """Return a liar's frame to a node with the excuse that it makes there, signed anew."""
        m, n, kept = self.micro, self.stages, ahead(liar.stage, self.stages, self.micro, 0)
        if not frame.waits or liar.excuse == "truth":
            return frame
        true = frame.waits[0]
        if liar.excuse == "none":  # but it asks for parts, as it is to come to the next meeting
            return frame if true.done >= 2 * m else structs.replace(frame, waits=())
        left = range(min(true.done, 2 * m), 2 * m)
        before = next((i for i in left if task(kept, m, i)[0] == "F"), true.done)
        behind = next((i for i in left if task(kept, m, i)[0] == "B"), true.done)
        done = {
            "before": before,
            "behind": behind,
            "both": behind if to.stage < liar.stage else before,
            "part": 2 * m + (liar.stage + 1) % n,
            "two_parts": 2 * m + (liar.stage + (1 if to.stage < liar.stage else -1)) % n,
            "chance": self.chance.randrange(2 * m + n),
        }[liar.excuse]
        waiting = Waiting(liar.machine.company, Keys(partial(signed, liar.peer), verified))
        return structs.replace(frame, waits=waiting.say(true.turn, true.step, done))

    def _arrive(self, sender, peer, frame):
        node = self.nodes.get(peer)
        if node is None:
            return
        try:
            self._do(node, node.machine.receive(sender, frame, self.now))
        except RemoteProtocolError as error:
            self.blamed += [] if node.lies else [(error.peer, error.reason)]


def learned(stages, steps, **rounds):
    """Return what each stage has learned after this many steps without any fault."""
    world = World(stages, **rounds)
    history = {}

    def seen():
        for node in world.nodes.values():
            history[node.stage, node.engine.step] = node.engine.x
        return world.steps() >= steps

    assert world.run(seen, 1e4)
    return [history[stage, steps] for stage in range(stages)]
