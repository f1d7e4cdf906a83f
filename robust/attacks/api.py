"""The interface of attacks: the knowledge of an attacker, and its message to each receiver. For experiments: the owner of a node
must consent twice.

Shapes: d parameters, h honest vectors, r receivers, c attackers, m samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from starling.gossip.lazy_torch import Generator, Tensor

Target: TypeAlias = Literal["vector", "data", "tracker", "memory", "wire"]


@dataclass(frozen=True, slots=True)
class Scene:
    """The knowledge of an attacker in one round, when it crafts its messages.

    All vectors are models, or trackers where the attack's target is the tracker. On a whole node
    the attacker knows its own vector and those received from peers in the last rounds.
    """

    own: Tensor  # (d,) its honest vector
    before: Tensor  # (d,) its vector before its local steps
    start: Tensor  # (d,) the common initial vector
    honest: Tensor  # (h, d) honest vectors of this round that it knows, h >= 1; all in a simulation
    members: Tensor  # (h,) int64, a number of each honest node that does not change from round to round
    receivers: Tensor  # (r, d) the receivers' own vectors, as far as known
    index: Tensor  # (r,) int64, the receivers' numbers, as in `members`
    gradient: Tensor  # (d,) estimate of the mean honest gradient, of any length: uphill
    round: int  # counted from 0
    rounds: int  # rounds of the run; 0 for an endless one
    attackers: int  # >= 1, this one included
    nodes: int  # all nodes, attackers included
    seed: int  # shared by the attackers
    tau: Tensor | None = None  # (r,) threshold of each receiver's rule, if it has one and it is known
    crew: Tensor | None = None  # (c, d) the attackers' honest vectors, in a common order; None: each knows its own only
    gradients: Tensor | None = None  # (h, d) honest gradients, if known; the scale of attacks on trackers
    links: Tensor | None = None  # (h, h) mean mixing weights between the honest over a period, if known


class Attack(Protocol):
    """A Byzantine behaviour. Its state is passed in and returned: None at first, at most 16 vectors."""

    @property
    def targets(self) -> Target:
        """Say where the attack acts.

        vector: `craft` instead of the vector. tracker: `craft` instead of the tracker, the model is honest. memory: `forged` instead of
        what its optimiser remembers. data: `Poison.poison` on every batch, then `craft`. wire: `Distort.distort` on every payload; `craft`
        gives what a receiver without checks would decode.
        """
        ...

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        """Return (r, d), the message to each receiver, and the new state. Inputs are not modified; the messages may be a view
        (expanded).
        """
        ...


@dataclass(frozen=True, slots=True)
class Formula:
    """An attack without state. Satisfies `Attack`.

    Args:
        message: -> (d,) the same to all receivers, or (r, d).
        targets: as in `Attack`.
    """

    message: Callable[[Scene, Generator], Tensor]
    targets: Target = "vector"

    def craft(self, memory: Any, scene: Scene, generator: Generator) -> tuple[Tensor, Any]:
        return self.message(scene, generator).expand_as(scene.receivers), memory


class Poison(Attack, Protocol):
    """An attack on labelled data."""

    def poison(self, inputs: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Map inputs (m, …) and labels (m,) int64 in [0, classes) to what the attacker trains on instead.

        Raises:
            ValueError: the attack names a class that the task does not have.
        """
        ...


class Distort(Attack, Protocol):
    """An attack on the bytes of a payload."""

    def distort(self, payload: bytes) -> bytes:
        """Map the payload of an honest vector to what is sent instead."""
        ...
