"""The interface of attacks: what an attacker knows, and what it sends to whom. For experiments: its owner must ask twice.

Shapes: d parameters, h honest vectors, r receivers, c attackers, m samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Generator, Tensor

Target: TypeAlias = Literal["vector", "data", "tracker", "wire"]


@dataclass(frozen=True, slots=True)
class Scene:
    """What an attacker knows in one round when it crafts its messages.

    All vectors are models, or trackers where the attack's target is the tracker. On a whole node the attacker knows its own vector and
    those received from peers in the last rounds.

    Args:
        own: (d,) its honest vector.
        before: (d,) its vector before its local steps.
        start: (d,) the vector that all nodes began with.
        honest: (h, d) honest vectors of this round that it knows, h >= 1; all in a simulation.
        members: (h,) int64, a number of each honest node that does not change from round to round.
        receivers: (r, d) the receivers' own vectors, as far as it knows.
        index: (r,) int64, the receivers' numbers, as in `members`.
        gradient: (d,) estimate of the mean honest gradient, of any length: uphill.
        round: counted from 0.
        rounds: of the run; 0 where it has no end.
        bad: attackers, >= 1, this one included.
        nodes: all nodes, attackers included.
        seed: what the attackers agreed on beforehand.
        tau: (r,) threshold of each receiver's rule, where the rule has one and it is known.
        crew: (c, d) the attackers' honest vectors, in an order they agree on; None: each knows its own only.
        gradients: (h, d) honest gradients of this round, where known; attacks on trackers take their scale from them.
        links: (h, h) mean mixing weights between the honest over a period of the overlay, where known.
    """

    own: Tensor
    before: Tensor
    start: Tensor
    honest: Tensor
    members: Tensor
    receivers: Tensor
    index: Tensor
    gradient: Tensor
    round: int
    rounds: int
    bad: int
    nodes: int
    seed: int
    tau: Tensor | None = None
    crew: Tensor | None = None
    gradients: Tensor | None = None
    links: Tensor | None = None


class Attack(Protocol):
    """A Byzantine behaviour. Its state goes in and comes out: None at first, at most 16 vectors."""

    @property
    def targets(self) -> Target:
        """Where it acts.

        vector: `craft` instead of the vector. tracker: `craft` instead of the tracker, the model is honest. data: `Poison.poison` on every
        batch, then `craft`. wire: `Distort.distort` on every payload; `craft` is what a receiver without checks would read.
        """
        ...

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """(r, d) the message to each receiver, and the new state. Inputs are not modified; the messages may be a view (expanded)."""
        ...


class Poison(Attack, Protocol):
    """An attack on labelled data."""

    def poison(self, inputs: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Inputs (m, …) and labels (m,) int64 in [0, classes) -> what the attacker learns from instead.

        Raises:
            ValueError: the attack names a class that is not there.
        """
        ...


class Distort(Attack, Protocol):
    """An attack on the bytes of a payload."""

    def distort(self, payload: bytes) -> bytes:
        """The payload of an honest vector -> what is sent instead."""
        ...
