"""A stage of a crew in virtual time that does anything by chance with what it sends, and with what it can sign."""

import heapq
from collections import deque
from contextlib import suppress
from functools import partial

from msgspec import structs

from starling.gossip.errors import EngineError, RemoteProtocolError
from starling.gossip.pipeline import stage_assignments
from starling.gossip.pipeline.crew_commands import Blame, FreeStage
from starling.gossip.pipeline.minutes import body
from starling.gossip.pipeline.waiting import Keys, Waiting
from starling.gossip.wire.schema import Backward, Forward, Minutes, Piece, PieceStored, Ready, Said, StepReport, Waits
from tests.gossip.pipeline.crews import FORGED, World, signed, verified

KINDS = Ready, Minutes, Forward, Backward, StepReport, Piece, PieceStored
ACTS = "drop", "delay", "repeat", "replay", "alter"
SHARES = (0.0, 0.0, 0.0, 0.03, 0.3, 1.0)
UNSIGNED = "waits", "heard", "heard_at", "signature"
SIGNED = "round", "step", "left", "evaluate", "points", "copies", "safe", "batches", "turn"
HABITS_S = 100.0  # seconds after which it takes other habits
STORED = 100  # frames that it may send again


class Adversary(World):
    """A crew of which stage `which` lies, from `begin` on. Every attribute of its behaviour is drawn from the world's seed."""

    def __init__(self, stages, which, **world):
        self.back_at, self.seat = 0.0, None  # it has given up its seat until then, if that is not 0
        self.liar, self.stored, self.habits, self.lying = f"p{which}", deque(maxlen=STORED), {}, False
        self.freed_in_word = False  # it may have said that it frees a seat
        self.charges = []  # (accuser, peer, reason) of honest stages
        super().__init__(stages, **world)

    @property
    def honest(self):
        """Return all other nodes."""
        return [node for node in self.nodes.values() if node.peer != self.liar]

    def begin(self):
        """Begin to lie."""
        self.lying = True
        self.nodes[self.liar].aside = True
        self._change()
        self._stir()

    def start(self, peer, stage):
        """Let a machine take a stage; the liar's never ends the test, whatever it is told."""
        node = super().start(peer, stage)
        if getattr(self, "lying", False) and peer == self.liar:
            node.aside = True
        return node

    def lose_engine(self, node):
        """Let the liar's engine die; half a second later another one begins."""
        node.machine.give_up()
        self.events = [each for each in self.events if each[3][1:2] != (node,) or each[3][0] == self.look]
        heapq.heapify(self.events)
        self.at(0.5, self._round, node)

    def send(self, node, peer, frame):
        """Let a node send a frame, and the liar what it likes."""
        if node.peer != self.liar or not self.lying:
            super().send(node, peer, frame)
            return
        chance, does = self.chance, {act: self.habits[type(frame), act, peer] for act in ACTS}
        self.stored.append(frame)
        if chance.random() < does["drop"]:
            return
        if chance.random() < does["replay"]:
            frame = chance.choice(self.stored)
        if chance.random() < does["alter"]:
            frame = self.altered(node, frame)
        if isinstance(frame, Ready) and not self.frees:
            frame = structs.replace(frame, freed=())
        for _ in range(1 + (chance.random() < does["repeat"]) * chance.randrange(1, 4)):
            after_s = self.delay_s * chance.random()
            after_s += (chance.random() < does["delay"]) * chance.choice([0.1, 1.0, 10.0]) * chance.random()
            self.at(after_s, self._arrive, node.peer, peer, frame)

    def altered(self, node, frame):
        """Return a frame with one field changed by chance, signed again if that can be done."""
        chance = self.chance
        match frame:
            case Ready():
                return self._ready(node, frame)
            case Minutes():
                return self._minutes(node, frame)
            case Forward() | Backward():
                change = chance.choice([{"payload": FORGED}, {"payload": b"other"}, {"micro": self._near(frame.micro)}, {}])
            case StepReport():
                change = chance.choice([{"loss": float("nan")}, {"squares": chance.random()}, {"fine": False}, {"samples": 0}, {}])
            case Piece():
                change = chance.choice([{"stage": self._stage()}, {"offset": self._near(frame.offset)}, {"size": 4}, {"data": b"1234"}])
            case _:
                change = {"stage": self._stage()}
        if chance.random() < 0.3 and not isinstance(frame, Piece):
            change = {name: self._near(getattr(frame, name)) for name in ("turn", "step") if hasattr(frame, name)}
        return structs.replace(frame, **change)

    def _ready(self, node, ready):
        chance = self.chance
        number = partial(lambda value: chance.choice([self._near(value), 0, 10**6, value + 1]))
        states = chance.choice([(), ready.points[:1], ready.points[1:], (*ready.points, ready.step)[-2:], (10**6,)])
        name = chance.choice(UNSIGNED if self.careful else UNSIGNED + SIGNED)
        values = {
            "evaluate": lambda: not ready.evaluate,
            "points": lambda: states,
            "copies": lambda: states,
            "waits": lambda: self._waits(node, ready),
            "heard": lambda: bytes(16),
            "signature": lambda: b"x",
            "turn": lambda: ready.turn + chance.choice([0, 1, 1, 2, 1000, 1 << 20]),
            "batches": lambda: chance.randrange(5),
        }
        changed = structs.replace(ready, **{name: values.get(name, lambda: number(getattr(ready, name)))()})
        if chance.random() < 0.3:
            changed = structs.replace(changed, freed=(self._stage(),)) if not changed.turn else changed
        if changed.turn and chance.random() < 0.9:
            own = [self._word(node, changed.turn, changed.step, 0)] if chance.random() < 0.7 else []
            if name != "waits" and (changed.turn != ready.turn or any(it.stage == node.stage for it in changed.waits)):
                changed = structs.replace(changed, waits=tuple(own))
            changed = self._signed(node, changed) if name != "signature" else changed
        return changed

    def _waits(self, node, ready):
        chance, turn = self.chance, ready.turn or node.machine.roll.number
        done = chance.randrange(2 * self.micro + self.stages)
        own = self._word(node, turn, self._near(ready.step), done if not ready.turn else 0)
        known = [waits for frame in self.stored if isinstance(frame, Ready) for waits in frame.waits]
        forged = Waits(self._stage(), turn, ready.step, 0, b"x")
        return tuple(chance.choice([[], [own], [own, *ready.waits[1:]], [chance.choice(known)] if known else [], [forged]]))

    def _minutes(self, node, minutes):
        chance, said = self.chance, list(minutes.said)
        if not said:
            return minutes
        at = chance.randrange(len(said))
        stage, ready = said[at].stage, said[at].ready
        if chance.random() < 0.3:
            del said[at]
        elif stage == node.stage and not self.careful:
            said[at] = Said(stage, self._ready(node, ready))
        else:
            change = chance.choice([{"waits": self._waits(node, ready)}, {"heard_at": 0}, {"signature": b"x"}, {"freed": (self._stage(),)}])
            said[at] = Said(chance.choice([stage, self._stage()]), structs.replace(ready, **change))
        chance.shuffle(said)
        return structs.replace(minutes, said=tuple(said))

    def _signed(self, node, ready):
        return structs.replace(ready, signature=signed(node.peer, body(node.stage, ready)))

    def _word(self, node, turn, step, done):
        return Waiting(node.machine.company, Keys(partial(signed, node.peer), verified)).say(turn, step, done)[0]

    def _near(self, value):
        return max(0, value + self.chance.choice([-3, -1, 1, 3]))

    def _stage(self):
        return self.chance.randrange(self.stages + 1)

    def _change(self):
        """Take other habits: of few kinds of frames and peers, or nothing that it says would be believed for long."""
        chance = self.chance
        self.careful = chance.random() < 0.5  # it says nothing at meetings that would prove anything
        self.frees = chance.random() < 0.2
        self.freed_in_word |= self.frees
        acts, kinds = chance.sample(ACTS, chance.randrange(4)), chance.sample(KINDS, chance.randrange(1, 5))
        peers = chance.choice([list(self.nodes), *([peer] for peer in self.nodes)])
        self.habits = {
            (kind, act, peer): chance.choice(SHARES) if act in acts and kind in kinds and peer in peers else 0.0
            for kind in KINDS
            for act in ACTS
            for peer in self.nodes
        }
        self.nodes[self.liar].paused = chance.random() < 0.1
        self.stirs_s = chance.choice([0.03, 0.3, 3.0, 30.0, 1e9])
        self.stirs = chance.sample(["call", "minutes", "again", "lose", "restart", "early", "leave"], 2)
        self.at(HABITS_S * chance.random() ** 2, self._change)

    def _stir(self):
        """Do something that nobody asked for."""
        chance, node = self.chance, self.nodes[self.liar]
        company, roll = node.machine.company, node.machine.roll
        others = [peer for peer in company.peers if peer != self.liar]
        if company.whole and roll.own is not None:
            some = chance.choice([others, *([peer] for peer in others)])
            for what in self.stirs[:1] if chance.random() < 0.7 else self.stirs[1:]:
                match what:
                    case "call":
                        turn, step = (
                            roll.called + chance.choice([1, 1, 1, 5, 1 << 20]),
                            max(0, node.machine.states.step - chance.randrange(2)),
                        )
                        ready = structs.replace(roll.own, turn=turn, step=step, waits=(self._word(node, turn, step, 0),))
                        self._all(some, self._signed(node, ready))
                    case "minutes":
                        self._all(some, self._minutes(node, roll.minutes(roll.number, self.stages)))
                    case "again" if self.stored:
                        self._all(some, chance.choice(self.stored))
                    case "early":
                        step = node.machine.states.step + chance.randrange(20)
                        self._all(some, StepReport(company.name, roll.number + chance.randrange(3), step, 0.0))
                    case "lose" if self.stirs_s >= 3.0:
                        self.lose_engine(node)
                    case "leave" if 0.3 <= self.stirs_s < 1e3 and not self.back_at:
                        self.back_at = self.now + self.stirs_s * chance.random()
                    case "restart" if self.stirs_s >= 3.0:
                        self.restart(node)
        self.at(min(self.stirs_s, 5.0) if self.stirs_s > 1e3 else self.stirs_s * (0.5 + chance.random()), self._stir)

    def _sit(self, node):
        if node.peer != self.liar or self.back_at <= 0.0:
            super()._sit(node)
            return
        if self.seat is None:
            self.seat, self.claims[node.peer] = self.claims[node.peer], stage_assignments.seat(50, node.stage, self.stages)
        if self.now >= self.back_at:
            self.claims[node.peer], self.seat, self.back_at = self.seat, None, 0.0

    def _all(self, peers, frame):
        if self.stirs_s < 1e3:
            for peer in peers:
                self.at(self.delay_s * self.chance.random(), self._arrive, self.liar, peer, frame)

    def _do(self, node, commands):
        if node.peer != self.liar or not self.lying:
            self.charges += [(node.peer, it.peer, it.reason) for it in commands if isinstance(it, Blame)]
            super()._do(node, commands)
        else:
            super()._do(node, [it for it in commands if not isinstance(it, Blame | FreeStage) and it is not None])

    def _arrive(self, sender, peer, frame):
        node = self.nodes.get(peer)
        if node is None:
            return
        try:
            commands = node.machine.receive(sender, frame, self.now)
        except RemoteProtocolError as error:
            self.charges += [(peer, error.peer, error.reason)] if peer != self.liar else []
        except (ValueError, AssertionError, KeyError, RuntimeError, EngineError):
            if peer != self.liar:
                raise
            self._anew()
        else:
            self._do(node, commands)

    def _anew(self):
        """Restart the liar: its own machine has met what only it does."""
        self.at(1.0, self.restart, self.nodes[self.liar])

    def guarded(self, call, *arguments):
        """Call a method for a node; what ends the liar restarts it."""
        if not arguments or getattr(arguments[0], "peer", None) != self.liar:
            call(*arguments)
            return
        with suppress(ValueError, AssertionError, KeyError, RuntimeError, EngineError, AttributeError, TypeError):
            call(*arguments)
            return
        if arguments[0] is self.nodes[self.liar]:
            self._anew()

    def at(self, after_s, call, *arguments):
        """Do something later, guarded."""
        if call in (self._arrive, self._change, self._stir, self.guarded, self._anew):
            super().at(after_s, call, *arguments)
        else:
            super().at(after_s, self.guarded, call, *arguments)
