"""Replicas that exchange with each other without a task: each descends its own linear function."""

import torch
from msgspec import structs

from starling.gossip.replica import Replica
from starling.gossip.rng import generator
from starling.gossip.vector import Layout
from starling.node.config.schema import OptimizerSection
from starling.node.engine import schedules
from starling.node.engine.consensus import ConsensusDistance
from starling.node.engine.exchange.api import Machine, Site
from starling.node.engine.exchange.catalogue import exchange_of
from starling.node.engine.exchange.shares import Agreed, Lesser
from starling.node.engine.mixing import mixer_of, settled_edges
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.vectors import FrozenVectors, GradientWindow, LiveVectors, Plain
from starling.node.rpc import calls
from tests.harness.engines import open_request

DIM = 30
RATE = 0.1


class Node:
    """A replica, its vectors, and its exchanges.

    Attributes:
        rate: of its local steps, if each node has its own; None: the manifest's.
    """

    rate = None

    def __init__(self, agreed, name, shard=0, dim=DIM, losses=None, **given):
        whole = Layout(("weight", "bias"), ((4, (dim - 2) // 4), (2,)), torch.float32)
        mixer, shared = mixer_of(agreed, whole)
        self.name, self.agreed = name, agreed
        self.seconds = 0.0
        self.replica = Replica(
            torch.full((dim,), 0.5), mixer, shared, lambda: torch.full((dim,), 0.5), settled_edges=settled_edges(agreed), keep_origin=True
        )
        self.steps = 0
        if agreed.pace.kind == "steps":
            self.vectors = FrozenVectors(self.replica, Plain(), agreed.pace.local_steps)
        else:
            self.vectors = LiveVectors(self.replica, Plain(), self.phase, lambda: self.steps, GradientWindow(), agreed.pace.local_steps)
        self.distances = ConsensusDistance()
        opened = structs.replace(open_request(agreed, shard, name), **given)
        site = Site(opened, self.vectors, self, losses, self.distances, Machine(self.work, Csprng(bytes).uniform))
        self.exchange = exchange_of(self.replica, site)
        self._handlers = self.exchange.handlers()

    @property
    def shares(self):
        """Return the shares of gains, as the site requests them."""
        return Agreed if self.rate is None else Lesser

    def shared_phase(self, round, local_steps):
        """Return the same phase: nobody joins late."""
        return self.phase(round, local_steps)

    def work(self):
        """Advance a clock on which everything takes a second."""
        self.seconds += 1.0
        return self.seconds

    def phase(self, round, local_steps):
        """Return the phase of a round."""
        section = OptimizerSection()
        if self.rate is not None:
            section = structs.replace(section, lr=self.rate, schedule="constant")
        return schedules.phase(section, schedules.schedule(section, 50), round, local_steps)

    def train(self, round=0, steps=3):
        """Do local steps, and freeze in steps pace."""
        slope = torch.randn(len(self.replica.x), generator=generator(7, self.name))
        chance = generator(7, self.name, round)
        for _ in range(steps):
            gradient = slope + 0.1 * torch.randn(len(slope), generator=chance)
            direction, self.replica.state = self.replica.mixer.correct(self.replica.state, gradient)
            self.replica.x -= RATE * direction
            self.steps += 1
        phase = self.phase(round, float(steps))
        self.replica.publish(phase)
        self.vectors.round = round
        if not self.vectors.exclusive:
            self.vectors.freeze(phase)

    def call(self, call):
        """Return the exchange's answer."""
        return self._handlers[type(call)](call)

    def mix(self, asked=(), *, own=True):
        """End a round."""
        frozen, committed = self.vectors.thawed()
        return self.exchange.mix(frozen, committed, asked, own=own)


def trained(agreed, names="ab", **given):
    """Return nodes after the local steps of round 0, by name."""
    nodes = {name: Node(agreed, name, shard, **given) for shard, name in enumerate(names)}
    for node in nodes.values():
        node.train()
    return nodes


def requested(nodes, one="a", other="b", seq=0, round=0):
    """Return the offer of a transaction, and its answer."""
    offered = nodes[one].call(calls.Offer(other, 0, seq, round, 0.5))
    answer = calls.Answer(one, 0, seq, round, 0.5, offered.gain, offered.payload, borne=offered.borne, reference=offered.reference)
    return answer, nodes[other].call(answer)


def transact(nodes, one="a", other="b", seq=0, round=0):
    """Make all four calls of a transaction."""
    _, answered = requested(nodes, one, other, seq, round)
    clip = 1.0 if answered.clip is None else answered.clip
    return (
        nodes[one].call(calls.Apply(other, 0, seq, answered.payload, answered.borne, answered.share, clip)),
        nodes[other].call(calls.Commit(one, 0, seq)),
    )


def send(nodes, one, other):
    """`one` publishes, `other` receives."""
    published = nodes[one].call(calls.Publish(0))
    return nodes[other].call(calls.VerifyUpdate(one, published.digest, published.payload))


def talk(nodes, pulled):
    """Do everything that a and b do in a round up to Mix."""
    if pulled:
        send(nodes, "a", "b")
        send(nodes, "b", "a")
    else:
        transact(nodes)
