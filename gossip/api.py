"""Protocols of algorithm parts. Structural: nothing inherits from these.

Shapes: d parameters, k kept coordinates, D numbers of the shared vector, E numbers kept per edge; "…" is nothing for one node,
and one or more dimensions of nodes or edges in a simulator: everything here is row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from starling.gossip.lazy_torch import Generator, Tensor, torch

if TYPE_CHECKING:
    from starling.gossip.compress.support import Support


class Quantizer(Protocol):
    """Values to bytes and back, nothing else: no indices, no header."""

    @property
    def code(self) -> int:
        """Return the code on the wire, never reused."""

    def encode(self, values: Tensor, generator: Generator) -> bytes:
        """Map (k,) finite to canonical bytes."""

    def decode(self, data: bytes | memoryview, count: int) -> Tensor:
        """Bytes -> (count,) finite. Raises ValueError unless `data` is exactly what encode could have made for `count` values."""

    def size(self, count: int) -> int:
        """Return the bytes of `count` values."""


class Selector(Protocol):
    """Choose the coordinates that an exchange is about."""

    def select(self, x: Tensor, reference: Tensor | None, seed: int, turn: int) -> Support:
        """Select coordinates of x (d,), a message, if `reference` is None; else of its difference from `reference` (d,).

        That is what was last known of the peer's vector: its values after the last exchange of them, at first those that all began with.

        `seed` is that of the edge's incarnation, `turn` the transaction's number on the edge.
        """


@dataclass(frozen=True, slots=True)
class Phase:
    """The moment of a run at a node."""

    round: int  # >= 0
    local_steps: float  # K, done since the last exchange; a mean where it is measured, 0 in a round that only mixes
    lr: float  # eta_c, what one local step along a unit direction moves a parameter by, in the long run (momentum included), > 0
    first: bool = True
    """This round's exchanges begin an averaging; true in every round of an overlay without global averages."""
    last: bool = True  # they complete it
    turn: int = 0  # number of that averaging, counted from 0
    highest_lr: float = 0.0  # highest rate of the run, equal at all nodes; 0: unknown
    climb: float = 1.0  # times its value at the highest lr that the gain of flows may climb to, with exchanges of whole vectors, >= 1
    members: int = 1  # members that exchange, including this node, >= 1; 1 if unknown


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of one committed exchange of a difference on one end."""

    peer: str  # the other end
    support: Support  # coordinates of the shared vector that the exchange contains
    value: Tensor  # (k,) signed difference v for this end: +v at the initiator, −v at the responder, the same bits
    theta: float  # mixing weight
    gain: float  # flow per unit of difference
    keeps: float = 1.0  # share of the flow, in [½, 1], that is kept before it moves
    memory: Any = None
    """`starling.gossip.mix.memories.Learned`: what the exchange does to the optimiser's memory; None: nothing."""

    def opposite(self, peer: str) -> Effect:
        """Return the effect of the same exchange on the other end, which knows us as `peer`."""
        return replace(self, peer=peer, value=-self.value)


@dataclass(frozen=True, slots=True)
class Swapped:
    """One committed swap of messages at one end: either both ends have the other's message, or neither."""

    peer: str  # the other end
    sent: Tensor | None  # (D,) our message as the peer decoded it; None if we sent none
    received: Tensor | None  # (D,) the peer's
    local: Tensor  # (D,) our shared vector when the message was made
    give: float  # weight that the peer gives to our message
    take: float  # weight that we give to the peer's message
    node: str  # this end
    memory: ClassVar[None] = None  # memories are not swapped


class Averaging(Protocol):
    """An exchange in which both ends apply one difference v with opposite signs, x ± θ·v."""

    def size(self, shared: int) -> int:
        """Return E: 0, or `shared` if flows are stored."""

    def gain(self, theta: float, ratio: float, phase: Phase) -> float:
        """Flow per unit of difference on a link of weight theta, for a support that is `ratio` of the shared vector."""

    def flow(self, kept: Tensor, moved: Tensor, share: float | Tensor = 1.0) -> Tensor:
        """Flow (…, k) after that share of it was kept, a number or (…, 1), and `moved` (…, k) = gain·v was added.

        An odd function, one rounding at a time.
        """

    def stored(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which flows of vectors of `dtype` are kept; those that come out of `flow` are numbers of it."""

    def borne(self, state: Any) -> Tensor | None:
        """Return (…, 1) float64, the share in [0, 1] of c that local steps bore out, of a mixing algorithm's state; None: all counts,
        always.

        Each end sends its own. By s, the lesser of both, the gain is multiplied, and of a flow 1 − ½(1 − s) is kept.
        """


@runtime_checkable
class Swapping(Protocol):
    """An exchange in which each end sends its own message, and both know that both arrived.

    Of one swap `sent` comes first, then `received`; with an unreliable network one may happen without the other.
    """

    def begin(self, origin: Tensor) -> Tensor:
        """Return (…, E): the state of a new edge, given the shared vector (…, D) that all nodes began with."""

    def message(self, edge_state: Tensor, local: Tensor, give: float | Tensor) -> Tensor:
        """Return (…, D), message to the peer, before compression, from the state (…, E) of this edge and our shared vector (…, D).

        `give` is the weight the peer gives to it, a number or (…, 1), > 0.
        """

    def sent(self, edge_state: Tensor, message: Tensor, local: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """Record that the message (…, D), as decoded, was sent -> new state (…, E) of the edge, change of our shared vector (…, D)."""

    def received(self, edge_state: Tensor, message: Tensor, local: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """Receive the peer's message (…, D) -> new state (…, E) of the edge, change of our shared vector (…, D)."""

    def difference(self, edge_state: Tensor, message: Tensor, local: Tensor) -> Tensor | None:
        """Difference of the peer's model from ours according to its message (…, D): (…, m), the model's d numbers first. None: unknown.

        For statistics, not for averaging. `edge_state` (…, E) is as it was before the message was received.
        """


@runtime_checkable
class Common(Swapping, Protocol):
    """A swap in which every node sends all its peers one message, and all move to the mean of what all have sent.

    If a node has swapped with all others, its shared vector becomes the mean of all estimates, added in the order of peer ids: the same
    bits everywhere. Else it is `base`, with the changes of `sent` and `received` added.
    """

    def settled(self, state: Any) -> Tensor:
        """Return (…, d), the model between rounds, which is equal at all nodes; local steps may be ahead of it."""

    def base(self, local: Tensor) -> Tensor:
        """Return (…, D): what our shared vector (…, D) counts for before any swap."""

    def estimates(self, edge_state: Tensor) -> tuple[Tensor, Tensor]:
        """Return (…, D): the peer's estimate of our shared vector, and ours of the peer's, after a swap that left `edge_state` (…, E)."""


@runtime_checkable
class Controlling(Common, Protocol):
    """A swap that leaves estimates of both ends' updates, whose difference corrects local steps as the flow of an edge does."""

    def flows(self, edge_state: Tensor) -> Tensor:
        """Return (…, D), the sum of the flows of k edges, of which only `edge_state` (…, k, E) is stored."""


Losses = Callable[[Tensor], Tensor]
"""Models (…, m, d) -> (…, m), the loss of each on the node's current own data."""
Combined = tuple[Tensor, Tensor, Tensor | None]
"""Result of a rule: the combined vector (…, D), its memory (…, s), and the peers it clipped or excluded, (…, k) bool.

Clipped or excluded is a peer whose vector moved us less than half as far as it would have by its weight. None where a rule works on
coordinates, or on anything else that does not distinguish peers.
"""


class Rule(Protocol):
    """Combine a node's own vector with those received from k peers, some of them Byzantine. Row by row, for any leading "…".

    An absent vector counts as one without information: a rule never gives the others more weight for it.
    """

    @property
    def memory_slots(self) -> int:
        """Return the number of peers whose history the rule stores (`starling.gossip.mix.rule_memory`); 0 for most rules."""

    def start(self, own: Tensor) -> Tensor:
        """Return (…, s), memory before the first round; s may be 0."""

    def combine(
        self,
        kept: Tensor,
        own: Tensor,
        received: Tensor,
        present: Tensor,
        before: Tensor,
        losses: Losses | None,
        slots: Tensor | None = None,
    ) -> Combined:
        """Combine the vectors of a round.

        Args:
            kept: (…, s) memory.
            own: (…, D) our vector after the local steps.
            received: (…, k, D) those of the peers, in order of peer id; finite, undefined where absent.
            present: (…, k) bool.
            before: (…, D) our vector before the local steps.
            losses: for rules that use losses of models; None where they are unknown.
            slots: (…, k) int64 memory slot of each present peer, -1 for none; None: one per peer, in their order.

        Raises:
            BreakdownExceeded: k peers are too few for the rule.
        """


@runtime_checkable
class Gathering(Protocol):
    """An exchange in which a node pulls the shared vectors of peers and combines them after the round; a pull changes no model."""

    @property
    def rule(self) -> Rule:
        """The rule that combines the vectors."""


@runtime_checkable
class Broadcasting(Protocol):
    """An exchange in which every node sends all others one message made of its shared vector, and all make the same step of the sum."""

    def settled(self, state: Any) -> Tensor:
        """Return (…, d), the model between rounds that is equal at all nodes; from it, or near it, local steps begin."""

    def kept(self, state: Any) -> dict[str, Tensor]:
        """Return the parts of the state that a checkpoint stores beside that model, by name."""

    def resumed(self, state: Any, kept: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        """Return the model (d,) and state with which a node continues after a restart. Raises ValueError: `kept` is another model's."""

    def moved(self, state: Any, settled: Tensor) -> Any:
        """Return the state of a node whose `settled` is replaced by this one (…, d), otherwise unchanged."""

    def advance(
        self, state: Any, shared: Tensor, sent: Tensor, messages: Tensor, present: Tensor, members: Sequence[str], round: int
    ) -> tuple[Any, Tensor]:
        """Return the step of a round -> the new state, and (…, n) bool whose messages were shortened. `absorb` follows.

        `shared` (…, D); `sent` (…, D) our own message as all decode it, 0 if none went out; `messages` (…, n, D) of all members in order of
        peer id, our own among them, finite; `present` (…, n) bool; `members`, the first of these n whose ids are known, of `round`.
        """


class Mixer(Protocol):
    """A mixing algorithm as seen from one node: pure functions over an opaque state.

    The state is None, or a frozen dataclass whose fields are all tensors with the leading dimensions of x.
    A round: local steps along `correct`; `publish`; exchanges about `shared`; `absorb`.
    """

    @property
    def edge(self) -> Averaging | Swapping | Gathering | Broadcasting:
        """Return the kind of its exchanges."""

    @property
    def asynchronous(self) -> bool:
        """May run in clock pace, where `publish` follows every local step and `absorb` every exchange."""

    def start(self, x: Tensor) -> Any:
        """Return the state for a model x (…, d)."""

    def correct(self, state: Any, gradient: Tensor) -> tuple[Tensor, Any]:
        """Return the direction the local optimiser sees instead of `gradient` (…, d), and the new state."""

    def publish(self, state: Any, x: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """Local steps are done: x (…, d) as it shall be, and the new state."""

    def shared(self, state: Any, x: Tensor) -> Tensor:
        """Return (…, D): what exchanges are about."""

    def absorb(self, state: Any, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Any]:
        """Return the shared vector (…, D) is now this, all changes added -> new x (…, d), new state. Called without exchanges as well."""

    def corrected(self, state: Any, flows: Tensor) -> Any:
        """Return the sum (…, D) of the flows of all our edges is now this. Only where `edge` keeps flows, or is `Controlling`."""


# Optional protocols of mixing algorithms; `starling.gossip.mix.kinds.abilities_of` checks once which are satisfied.


@runtime_checkable
class Replacing(Protocol):
    """A mixing algorithm that may take the shared vector for the model."""

    @property
    def replaces(self) -> bool:
        """Tell if `shared` is x itself, and `publish` and `absorb` read nothing else, so that a model may be mixed in its own memory."""


@runtime_checkable
class CorrectsInPlace(Protocol):
    """A mixing algorithm that corrects one node's gradient without another vector, in about one pass over memory."""

    def correct_in_place(self, state: Any, gradient: Tensor, step: int) -> tuple[Tensor, Any]:
        """Correct a finite gradient (d,) as `Mixer.correct`, in place -> the gradient and the new state.

        What the state remembers of gradients may change in its own memory, so the new state is to be kept even if the step is undone; the
        correction itself does not. `step` is the number of the local step: of long vectors a part in turn may stand for the whole.
        """
