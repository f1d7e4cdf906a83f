"""Machines of sampled rounds together: messages have delays, turns take time, members crash together."""

import heapq
import random
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from math import inf

from starling.gossip.exchange.attestation import body
from starling.gossip.exchange.commands import SendMessage
from starling.gossip.exchange.sampled import Due, Sampled, Sampling
from starling.gossip.overlay.ranks import ranked
from starling.gossip.wire.schema import Claim
from tests.harness.signatures import sign, verify

MIN_S, MAX_S = 0.25, 2.0
TRAIN_S, PULL_S = 1.0, 0.1
MOST_EVENTS = 100_000


def claim(peer: str, turn: int) -> Claim:
    told = blake2b(f"{peer} {turn}".encode(), digest_size=32).digest()
    return Claim(peer, 1, turn, told, sign(peer, body("swarm", peer, 1, turn, told)))


def machine(me: str, sampling: Sampling, order: Callable[[int], tuple[str, ...]]) -> Sampled:
    return Sampled(me, "swarm", sampling, order, verify, lambda peer: peer.startswith("n"), MIN_S, MAX_S)


class SampledSwarm:
    """`n` machines; `done` has the members that published each turn and when, `finished` those with the last model.

    Every one misses a random share `blind` of the others.
    """

    def __init__(self, sampling: Sampling, n: int, seed: int, *, loss: float = 0.0, blind: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.loss = loss
        self.sampling = sampling
        self.names = [f"n{index:02d}" for index in range(n)]
        self.alive, self.view = set(self.names), set(self.names)
        self.unseen = {me: {other for other in self.names if other != me and blind and self.rng.random() < blind} for me in self.names}
        self.nodes = {name: machine(name, sampling, partial(self.order, name)) for name in self.names}
        self.busy: set[str] = set()
        self.finished: set[str] = set()
        self.done: list[tuple[float, str, int]] = []
        self._looks: set[tuple[str, float]] = set()
        self.now, self.messages, self._count = 0.0, 0, 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        for name in self.names:
            self.at(0.0, lambda name=name: self.send(name, self.nodes[name].begin(self.now)))

    def order(self, me: str, turn: int) -> tuple[str, ...]:
        return ranked(self.view - self.unseen[me], turn.to_bytes(8, "little"))

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, what))

    def silence(self, when: float, names: Iterable[str], detect_s: float) -> None:
        """Crash these members; each is detected about this much later."""

        def gone(name: str) -> None:
            self.view.discard(name)
            for other in self.alive:
                self.nodes[other].forget(name)
                self._look(other)

        chosen = tuple(names)
        self.at(when, lambda: self.alive.difference_update(chosen))
        for name in chosen:
            self.at(when + detect_s * (0.5 + self.rng.random()), lambda name=name: gone(name))

    def run(self, until_s: float) -> None:
        events = 0
        while self._queue and self._queue[0][0] <= until_s and not self.finished >= self.alive:
            self.now, _, what = heapq.heappop(self._queue)
            what()
            events += 1
            assert events < MOST_EVENTS, "the machines wake each other without end"

    def send(self, me: str, messages: Iterable[SendMessage]) -> None:
        for it in messages:
            self.messages += 1
            if self.rng.random() >= self.loss:
                self.at(self.now + 0.02 + 0.02 * self.rng.random(), lambda it=it: self._arrive(it.peer, me, it.message))
        self._look(me)

    def _arrive(self, to: str, sender: str, message) -> None:
        if to in self.alive:
            self.send(to, self.nodes[to].receive(sender, message, self.now)[0])

    def _look(self, name: str) -> None:
        node = self.nodes[name]
        if name not in self.alive:
            return
        if node.tick_at <= self.now:
            self.send(name, node.tick(self.now))
        if name not in self.busy and (due := node.due(self.now)) is not None:
            self.busy.add(name)
            node.take_on(due, self.now)
            gone = [peer for peer in due.sources if peer not in self.alive]
            self.at(self.now + PULL_S + (MAX_S if gone else 0.0), lambda: self._taken(name, due, gone))
        elif name not in self.busy:
            assert node.due_at > self.now, "a shell that waits for that moment must not turn round and round"
        for when in (node.tick_at, node.due_at if name not in self.busy else inf):
            if self.now < when < inf and (name, when) not in self._looks:
                self._looks.add((name, when))
                self.at(when, lambda: self._look(name))

    def _taken(self, name: str, due: Due, gone: list[str]) -> None:
        if name not in self.alive:
            return
        had = [peer for peer in due.sources if peer not in gone]
        if due.sources and not had:
            self.busy.discard(name)
            self.nodes[name].give_up(due, gone, self.now)
            self._look(name)
        elif due.last:
            self.finished.add(name)
            self.busy.discard(name)
            self.send(name, self.nodes[name].finish(had))
        else:
            trains = self.sampling.trains(due.turn) and not due.again
            takes_s = TRAIN_S * (0.8 + 0.4 * self.rng.random()) if trains else PULL_S
            self.at(self.now + takes_s, lambda: self._publish(name, due, had))

    def _publish(self, name: str, due: Due, had: list[str]) -> None:
        if name in self.alive:
            self.done.append((self.now, name, due.turn))
            self.busy.discard(name)
            self.send(name, self.nodes[name].publish(claim(name, due.turn), had, self.now))
