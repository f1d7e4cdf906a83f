"""The shapes that algorithm parts fit into. Structural: nothing inherits from these.

Shapes: d parameters, k kept coordinates, D numbers of the shared vector, E numbers kept per edge; "…" is nothing for one node,
and one or more dimensions of nodes or edges in a simulator: everything here is row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from starling.gossip.overlay.api import Overlay

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Generator, Tensor

    from starling.gossip.compress.support import Support

__all__ = [
    "Averaging", "Combined", "Effect", "Gathering", "Heard", "Losses", "Mixer", "Overlay", "Phase", "Quantizer", "Rule", "Selector",
    "Swapped", "Swapping",
]  # fmt: skip


class Quantizer(Protocol):
    """Values to bytes and back, nothing else: no indices, no header."""

    @property
    def code(self) -> int:
        """Its number on the wire, never reused."""
        ...

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """(k,) finite -> canonical bytes."""
        ...

    def decode(self, data: bytes | memoryview, count: int) -> Tensor:
        """Bytes -> (count,) finite. Raises ValueError unless `data` is exactly what encode could have made for `count` values."""
        ...

    def size(self, count: int) -> int:
        """Bytes that `count` values take."""
        ...


class Selector(Protocol):
    """Which coordinates an exchange is about."""

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """Args:
        x: (d,) the vector.
        reference: (d,) its values at the last exchange with this peer, or None.
        seed: of the edge's incarnation.
        turn: the transaction's number on the edge.
        """
        ...


@dataclass(frozen=True, slots=True)
class Phase:
    """Where in a run a node is.

    Args:
        round: >= 0.
        local_steps: K, done since the last exchange; a mean where it is measured, 0 in a round that only mixes.
        lr: eta_c, what one local step along a unit direction moves a parameter by, in the long run (momentum included), > 0.
        first: this round's exchanges begin an averaging; true in every round of an overlay without global averages.
        last: they complete it.
        turn: number of that averaging, counted from 0.
    """

    round: int
    local_steps: float
    lr: float
    first: bool = True
    last: bool = True
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """What one committed exchange of a difference does to one end.

    Args:
        peer: the other end.
        support: coordinates of the shared vector it is about.
        value: (k,) signed difference v for this end: +v at the initiator, −v at the responder, the same bits.
        theta: mixing weight.
        gain: flow per unit of difference.
    """

    peer: str
    support: Support
    value: Tensor
    theta: float
    gain: float


@dataclass(frozen=True, slots=True)
class Swapped:
    """What one committed swap of messages tells one end: each has what the other sent, or neither has.

    Args:
        peer: the other end.
        sent: (D,) our message as the peer decoded it; None if we had nothing to say.
        received: (D,) the peer's.
        mine: (D,) our shared vector when the message was made.
        give: weight the peer gives to what we send.
        take: weight we give to what the peer sends.
    """

    peer: str
    sent: Tensor | None
    received: Tensor | None
    mine: Tensor
    give: float
    take: float


class Averaging(Protocol):
    """What an exchange is where both ends apply one difference v with opposite signs, x ± θ·v."""

    def size(self, shared: int) -> int:
        """E: 0, or `shared` where flows are kept."""
        ...

    def gain(self, theta: float, ratio: float, phase: Phase) -> float:
        """Flow per unit of difference on a link of weight theta, for a support that is `ratio` of the shared vector."""
        ...

    def flow(self, kept: Tensor, moved: Tensor) -> Tensor:
        """Flow (…, k) after `moved` (…, k) = gain·v was added. An odd function, one rounding at a time."""
        ...


class Swapping(Protocol):
    """What an exchange is where each end sends a message of its own, and both know that both arrived.

    Of one swap `sent` comes first, then `received`; with an unreliable network one may happen without the other.
    """

    def begin(self, origin: Tensor) -> Tensor:
        """(…, E) what is kept of a new edge, given the shared vector (…, D) that all nodes began with."""
        ...

    def message(self, kept: Tensor, mine: Tensor, give: float | Tensor) -> Tensor:
        """(…, D) what to tell the peer, before compression.

        Args:
            kept: (…, E) of this edge.
            mine: (…, D) shared vector.
            give: weight the peer gives to it, a number or (…, 1), > 0.
        """
        ...

    def sent(self, kept: Tensor, message: Tensor, mine: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """The message (…, D), as decoded, is out -> what is kept (…, E), change of our shared vector (…, D)."""
        ...

    def received(self, kept: Tensor, message: Tensor, mine: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """The peer's message (…, D) is here -> what is kept (…, E), change of our shared vector (…, D)."""
        ...

    def difference(self, kept: Tensor, message: Tensor, mine: Tensor) -> Tensor | None:
        """What the peer's message (…, D) says of how its model differs from ours: (…, m), the model's d numbers first. None: nothing.

        To be looked at, not to be averaged. `kept` (…, E) is as it was before the message was received.
        """
        ...


Losses: TypeAlias = "Callable[[Tensor], Tensor]"
"""Models (…, m, d) -> (…, m), each one's loss on the node's own data of now."""
Combined: TypeAlias = "tuple[Tensor, Tensor, Tensor | None]"
"""What a rule makes of a round: the combined vector (…, D), what it remembers (…, s), and whom it held back, (…, k) bool.

Held back is a peer whose word moved us less than half as far as it asked for, beside the others: clipped so much, or left out. None where a
rule goes by coordinates, or by anything else that does not tell one peer from another.
"""


class Rule(Protocol):
    """How a node combines its own vector with those it was told by k peers, some of whom may lie. Row by row, for any leading "…".

    What is absent counts as a vector that is no help: a rule never gives the others more weight for it.
    """

    @property
    def seats(self) -> int:
        """Peers that it remembers one by one, as `starling.gossip.mix.rule_memory` says; 0 for most rules."""
        ...

    def start(self, own: Tensor) -> Tensor:
        """(…, s) what the rule remembers between rounds, before the first; s may be 0."""
        ...

    def combine(
        self,
        kept: Tensor,
        own: Tensor,
        told: Tensor,
        present: Tensor,
        before: Tensor,
        losses: Losses | None,
        seats: Tensor | None = None,
    ) -> Combined:
        """The combined vector, what is remembered, and who was held back.

        Args:
            kept: (…, s).
            own: (…, D) our vector after the local steps.
            told: (…, k, D) those of the peers, in order of peer id; finite, and of no meaning where absent.
            present: (…, k) bool.
            before: (…, D) our vector before the local steps.
            losses: for rules that look at what a model is worth; None where that cannot be known.
            seats: (…, k) int64 where those who are present sit, -1 for those who stand; None: in their order, as many as there are.

        Raises:
            BreakdownExceeded: k peers are too few for the rule to mean anything.
        """
        ...


class Gathering(Protocol):
    """What an exchange is where a node asks peers for their shared vectors and combines them when the round is over.

    Being asked moves nobody.
    """

    @property
    def rule(self) -> Rule:
        """How they are combined."""
        ...


@dataclass(frozen=True, slots=True)
class Heard:
    """What one peer told: all of its shared vector.

    Args:
        peer: who.
        vector: (D,) as decoded, finite.
    """

    peer: str
    vector: Tensor


class Mixer(Protocol):
    """A mixing algorithm as seen from one node: pure functions over an opaque state.

    The state is None, or a frozen dataclass whose fields are all tensors with the leading dimensions of x.
    A round: local steps along `correct`; `publish`; exchanges about `shared`; `absorb`.
    """

    @property
    def edge(self) -> Averaging | Swapping | Gathering:
        """What an exchange is."""
        ...

    @property
    def asynchronous(self) -> bool:
        """May run in clock pace, where `publish` follows every local step and `absorb` every exchange."""
        ...

    @property
    def static(self) -> bool:
        """Needs one symmetric mixing matrix that never changes."""
        ...

    def size(self, dim: int) -> int:
        """D for d parameters."""
        ...

    def start(self, x: Tensor) -> Any:
        """State for a model x (…, d)."""
        ...

    def correct(self, state: Any, gradient: Tensor) -> tuple[Tensor, Any]:
        """The direction the local optimiser sees instead of `gradient` (…, d), and the new state."""
        ...

    def publish(self, state: Any, x: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """Local steps are done: x (…, d) as it shall be, and the new state."""
        ...

    def shared(self, state: Any, x: Tensor) -> Tensor:
        """(…, D) what exchanges are about."""
        ...

    def absorb(self, state: Any, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """The shared vector (…, D) is now this, all changes added -> new x (…, d), new state. Called without exchanges as well."""
        ...

    def corrected(self, state: Any, flows: Tensor) -> Any:
        """The sum (…, D) of the flows of all our edges is now this. Only where `edge` keeps flows."""
        ...
