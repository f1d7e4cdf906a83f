"""A model of one edge between two ends for the property tests: integer vectors, a slow engine and a hostile network.

`engine` of each end carries out its calls in order, when the test says; `net` is a bag of messages that the test delivers in any order,
repeats and loses. Every command is carried out exactly as by the real shell.
"""

from collections import deque
from collections.abc import Callable
from random import Random

from starling.gossip.exchange.calls import Answer, Answered, Apply, Commit, Drop, EdgeCall, Offer, Offered, Revoke, Settle
from starling.gossip.exchange.commands import EdgeCommand, Ended, SendMessage
from starling.gossip.exchange.edge import MAX_COPIES, Edge
from starling.gossip.exchange.edge_rules import BROKEN
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import PairwiseMessage, Request, Solicit

VIEW = b"view-digest"


class Ledger:
    """An engine's state of one edge: a number instead of a vector.

    Args:
        add: (flow, v) -> new flow; the default is exact.
    """

    def __init__(self, add: Callable[[float, float], float] = lambda flow, v: flow + v) -> None:
        self.add = add
        self.flow: float = 0
        self.settled: float = 0
        self.kept: dict[tuple[int, int], float] = {}
        self.done: dict[tuple[int, int], float] = {}  # effects in flow or settled, by (inc, seq)

    def apply(self, key: tuple[int, int], v: float) -> None:
        assert key not in self.done, "no transaction counts twice"
        self.flow = self.add(self.flow, v)
        self.done[key] = v

    def revoke(self) -> None:
        self.flow = self.settled = 0
        self.kept.clear()
        self.done.clear()


class End:
    """One end: machine, engine and the test's actions on it."""

    def __init__(
        self,
        me: str,
        peer: str,
        rng: Random,
        net: list[tuple[str, PairwiseMessage]],
        ledger: Ledger | None = None,
        make: Callable[[str, str, int], Edge] = Edge,
    ) -> None:
        self.make = make
        self.rng, self.net = rng, net
        self.edge = self.make(me, peer, rng.randrange(1, 2**48))
        self.ledger = ledger or Ledger()
        self.engine: deque[EdgeCall] = deque([Revoke(peer)])
        self.ended: list[Ended] = []
        self.values: Callable[[], float] = lambda: rng.randint(-99, 99)
        self.unreliable = True  # refuses and defers requests; the engine fails

    def do(self, commands: list[EdgeCommand]) -> None:
        for command in commands:
            match command:
                case SendMessage(_, message):
                    self.net.append((self.edge.peer, decode("exchange", self.edge.me, encode(message))))
                case Request():
                    if not self.unreliable or self.rng.random() < 0.7:
                        self.do(self.edge.accept(command.inc, command.seq))
                    elif self.rng.random() < 0.5:
                        self.do(self.edge.refuse(command.inc, command.seq, "busy", 0))
                case Solicit():
                    self.begin()
                case Ended():
                    self.ended.append(command)
                case _:
                    self.engine.append(command)

    def begin(self) -> None:
        if self.edge.ready:
            self.do(self.edge.begin(0, VIEW, 0.5))
        elif not self.edge.initiator:
            self.do(self.edge.solicit(0, VIEW))

    def accept_deferred(self) -> None:
        pending = self.edge.pending
        if pending is not None and pending.phase == "asked":
            self.do(self.edge.accept(self.edge.inc, pending.seq))

    def restart(self) -> None:
        """Restart the process: edge and engine lose their state, frames to it are lost."""
        me, peer = self.edge.me, self.edge.peer
        self.net[:] = [(dst, message) for dst, message in self.net if dst != me]
        self.edge = self.make(me, peer, self.rng.randrange(1, 2**48))
        self.engine = deque([Revoke(peer)])

    def work(self) -> None:
        """Let the engine do one thing."""
        command = self.engine.popleft()
        ledger, edge = self.ledger, self.edge
        refuses = self.unreliable and self.rng.random() < 0.1
        match command:
            case Offer(_, inc, seq) | Answer(_, inc, seq) | Apply(_, inc, seq) if refuses:
                self.do(edge.failed(inc, seq, "refused"))
            case Offer(_, inc, seq):
                ledger.kept[inc, seq] = 0
                self.do(edge.offered(inc, seq, Offered(b"x", 1.0)))
            case Answer(_, inc, seq):
                v = ledger.kept[inc, seq] = self.values()
                self.do(edge.answered(inc, seq, Answered(repr(v).encode())))
            case Apply(_, inc, seq, payload):
                assert ledger.kept.pop((inc, seq)) == 0, "what is applied was offered"
                ledger.apply((inc, seq), float(payload))
                self.do(edge.applied(inc, seq))
            case Commit(_, inc, seq):
                ledger.apply((inc, seq), -ledger.kept.pop((inc, seq)))
            case Drop(_, inc, seq):
                ledger.kept.pop((inc, seq), None)
            case Revoke():
                ledger.revoke()
            case Settle():
                ledger.settled += ledger.flow
                ledger.flow = 0

    @property
    def total(self) -> float:
        return self.ledger.flow + self.ledger.settled


class Pair:
    """Both ends of an edge and the network between them."""

    def __init__(self, rng: Random, ledgers: tuple[Ledger, Ledger] | None = None, make: Callable[[str, str, int], Edge] = Edge) -> None:
        self.rng = rng
        self.net: list[tuple[str, PairwiseMessage]] = []
        one, other = ledgers or (Ledger(), Ledger())
        self.a, self.b = End("a", "b", rng, self.net, one, make), End("b", "a", rng, self.net, other, make)
        self.ends = (self.a, self.b)

    def deliver(self, *, loss: float, duplication: float) -> None:
        """Deliver a random message, lose it, or deliver it and keep it in the network."""
        dst, message = self.net.pop(self.rng.randrange(len(self.net)))
        if self.rng.random() < loss:
            return
        if self.rng.random() < duplication:
            self.net.append((dst, message))
        end = self.a if dst == "a" else self.b
        assert not BROKEN[type(message)](message, end.edge.end)
        end.do(end.edge.receive(message))

    def drain(self, *, rounds: int = 12) -> None:
        """Run without further faults: both ends retry and exchange. Messages sent too often are abandoned, as at their deadline."""
        for end in self.ends:
            end.unreliable = False
        for _ in range(rounds):
            for end in self.ends:
                if any(it is not None and it.copy == MAX_COPIES for one in self.ends for it in (one.edge.outstanding, one.edge.pending)):
                    end.do(end.edge.abort("timeout", "deadline"))
                end.accept_deferred()
                end.do(end.edge.retry())
                end.begin()
            self.settle_down()

    def settle_down(self) -> None:
        steps = 0
        while self.net or self.a.engine or self.b.engine:
            steps += 1
            assert steps < 10_000, "the two ends never stop talking"
            for end in self.ends:
                if end.engine:
                    end.work()
            if self.net:
                self.deliver(loss=0, duplication=0)

    def comparable(self) -> bool:
        """Return whether both flows are of one incarnation, or one end has settled and the other is about to."""
        if any(isinstance(command, Revoke) for end in self.ends for command in end.engine):
            return False
        one, other = sorted((end.edge for end in self.ends), key=lambda edge: edge.inc)
        return one.inc == other.inc or (one.closing and other.settled is not None and one.inc == other.settled[0])

    def check(self) -> None:
        """Assert that flow_ij + flow_ji is what the initiator committed and the responder has not yet."""
        if not self.comparable():
            return
        i, r = self.a, self.b
        open_keys = set(i.ledger.done) - set(r.ledger.done)
        assert set(r.ledger.done) <= set(i.ledger.done), "the responder commits only what the initiator committed"
        assert i.total + r.total == sum(i.ledger.done[key] for key in open_keys)
        queued = {(c.inc, c.seq) for c in r.engine if isinstance(c, Commit)}
        pending = {(r.edge.inc, r.edge.pending.seq)} if r.edge.pending is not None else set()
        assert open_keys <= queued | pending, "what is committed here can still be committed there"


def random_event(pair: Pair, *, loss: float, duplication: float, resets: bool, closes: bool, restarts: bool) -> None:
    """Apply one random event."""
    rng, draw = pair.rng, pair.rng.random()
    end = rng.choice(pair.ends)
    if draw < 0.06:
        end.begin()
    elif draw < 0.065:
        end.do(end.edge.abort("timeout", "deadline"))
    elif draw < 0.16:
        end.do(end.edge.retry())
    elif draw < 0.2:
        end.accept_deferred()
    elif draw < 0.202 and resets:
        end.do(end.edge.reset(rng.choice((0, end.edge.inc + rng.randrange(1, 9), rng.randrange(2**48)))))
    elif draw < 0.206 and closes:
        end.do(end.edge.close())
    elif draw < 0.208 and restarts:
        end.restart()
    elif draw < 0.5 and end.engine:
        end.work()
    elif pair.net:
        pair.deliver(loss=loss, duplication=duplication)
    if len(pair.net) > 12:
        pair.net.pop(0)
