"""One node's copy of the model: its parameters, the mixing algorithm's state, and the memory of each edge.

It knows neither task nor network nor clock. Local steps change `x` and replace `state`; exchanges are about `shared()`, and what they
commit comes back by `combine`, `gather` or `advance`.

Shapes: d parameters, D numbers of the shared vector, k peers asked, n members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from starling.gossip.api import Effect, Losses, Mixer, Phase
from starling.gossip.edge_memory import MEMORIES, Committed, EdgeMemory, Edges, RuleMemory
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.base import origin
from starling.gossip.mix.encoded_effects import EncodedEffect
from starling.gossip.mix.gather import Gather
from starling.gossip.mix.kinds import abilities_of
from starling.gossip.mix.memories import MemoryExchange
from starling.gossip.mix.personal import Personal
from starling.gossip.vector import Layout, finite

Adjust = Callable[[Sequence[Committed], Tensor], Sequence[Committed]]
"""(effects, shared vector (D,) before them) -> the effects that this node wants instead."""


class Scope(Protocol):
    """The part of a model that nodes share."""

    personal: bool  # whether a part is personal

    def part(self, x: Tensor) -> Tensor:
        """Return what of a model (d,) others may take over."""

    def whole(self, part: Tensor, x: Tensor) -> Tensor:
        """Return a model with this part, and for the rest what x (d,) has. Raises ValueError: it is the part of another model."""


class WholeModel:
    """The whole model as shared part."""

    personal = False

    def part(self, x: Tensor) -> Tensor:
        return x

    def whole(self, part: Tensor, x: Tensor) -> Tensor:
        return part


class SharedPart:
    """The coordinates that `mixer` shares, (s,) of them."""

    personal = True

    def __init__(self, mixer: Personal, size: int) -> None:
        self._mixer, self._size = mixer, size

    def part(self, x: Tensor) -> Tensor:
        """Return (s,) of x, a copy."""
        return self._mixer.part(x)

    def whole(self, part: Tensor, x: Tensor) -> Tensor:
        """Return a copy of x with these coordinates."""
        if part.shape != (self._size,):
            raise ValueError("holds another model")
        return self._mixer.put(x, part.to(x))


class Replica:
    """A model that local steps and a mixing algorithm change.

    Attributes:
        x: (d,) the parameters, and buffers that are averaged; written to in place, always the same memory.
        parameters: (t,) what of x local steps change.
        mixer: the mixing algorithm.
        state: its state.
        abilities: what it can do.
        kind: of its exchanges.
        memory: of its edges.
        scope: which part of the model is shared.
        remembered: what the optimiser remembers, where it is averaged as well; None: it is not.
        layout: of what is shared of the model, the first of the D numbers.
        given: (d,) outer parameters of earlier rounds that others may ask for, by digest.
    """

    def __init__(
        self,
        x: Tensor,
        mixer: Mixer,
        layout: Layout,
        beginning: Callable[[], Tensor],
        *,
        settled_edges: int,
        keep_origin: bool = False,
        adjust: Adjust = lambda done, _shared: done,
    ) -> None:
        """`beginning` makes the initial model (d,); `keep_origin`: store it, since exchanges compare with it often.

        `settled_edges` as of `Flows`. `adjust`: what a node makes of effects before they are added.
        """
        self.x, self.mixer, self.layout = x, mixer, layout
        self.parameters = x[: len(x) - (layout.dim - layout.trained)]
        self.abilities = abilities_of(mixer)
        self.kind = self.abilities.kind
        self.beginning, self._adjust = beginning, adjust
        self.scope: Scope = SharedPart(mixer, layout.dim) if isinstance(mixer, Personal) else WholeModel()
        self._settled_edges = settled_edges
        self._writable = _itself if self.abilities.replaces else torch.clone
        """Gives the mixing algorithm a vector to write to: the model itself is mixed, or a copy."""
        self._origin: Callable[[], Tensor] = lambda: origin(mixer, beginning())
        self.remembered: MemoryExchange | None = None
        self.given: dict[bytes, Tensor] = {}
        self.state: Any
        self.memory: EdgeMemory
        self.restart()
        if keep_origin or self.memory.compares:
            kept = origin(mixer, x)
            self._origin = lambda: kept

    def restart(self) -> None:
        """Restart the mixing algorithm with x, without edges."""
        self.state = self.mixer.start(self._writable(self.x))
        edges = Edges(self.mixer.edge, self.mixer.shared(self.state, self.x), lambda: self.origin, self._settled_edges)
        self.memory = MEMORIES[self.kind](edges)
        self._correct()  # the same zeros in both, once

    @property
    def form(self) -> Tensor:
        """(D,) of the shared vector's length, dtype and device; its numbers mean nothing."""
        return self.memory.ledger.total

    @property
    def origin(self) -> Tensor:
        """(D,) the shared vector that all nodes began with."""
        return self._origin()

    @property
    def settled(self) -> Tensor:
        """Return (d,) the model for evaluation, export, checkpoints and late joiners: the outer parameters, if there are any."""
        return self.memory.settled(self.state, self.x)

    @property
    def offered(self) -> Tensor:
        """Return the part of the model that others may adopt."""
        return self.scope.part(self.settled)

    def publish(self, phase: Phase) -> None:
        """Let the mixing algorithm act after local steps."""
        x, self.state = self.mixer.publish(self.state, self._writable(self.x), phase)
        self._take(x)

    def shared(self) -> Tensor:
        """Return (D,) the vector that exchanges are about; it changes with the model where it is the model."""
        return self.mixer.shared(self.state, self.x)

    def combine(self, done: Sequence[Committed], phase: Phase) -> None:
        """Add the effects of pairwise exchanges in the given order; in steps pace once per round, even if there are none."""
        shared = self.shared()
        done = self._adjust(done, shared)
        if done:
            shared, moved = self.memory.book(done, self._writable(shared))
            if moved:
                self._correct()
        if self.remembered is not None:
            for each in done:
                self.remembered.learn(each.memory)
        self._absorb(shared, phase)

    def edge_only(self, done: Committed) -> Effect | EncodedEffect:
        """Update the state of an effect's edge ahead of its round -> the effect that remains for the vector."""
        remains, moved = self.memory.edge_only(done, self.form)
        if moved:
            self._correct()
        return remains

    def gather(
        self, own: Tensor, requested: Sequence[str], received: Tensor, present: Tensor, losses: Losses | None, phase: Phase
    ) -> Tensor | None:
        """Combine `own` (D,), our vector, with those of peers (k, D), where present (k,) -> (k,) bool: excluded; None: unknown."""
        memory, mixer = self.memory, self.mixer
        assert isinstance(memory, RuleMemory)
        assert isinstance(mixer, Gather)
        shared, excluded = own, None
        if len(present):
            before, slots, taken = memory.assigned(self.state, requested, present)
            combined, state, excluded = mixer.combine(before, shared, received, present, losses, slots)
            if finite(combined):  # otherwise our own vector stays
                shared, self.state = combined, state
                memory.keep(taken)
        self._absorb(shared, phase)
        return excluded

    def advance(self, shared: Tensor, sent: Tensor, messages: Tensor, present: Tensor, members: Sequence[str], phase: Phase) -> Tensor:
        """Make the step of a round in which all nodes broadcast, with the arguments of `Broadcasting.advance` -> (n,) bool: shortened."""
        edge: Any = self.mixer.edge
        state, shortened = edge.advance(self.state, shared, sent, messages, present, members, phase.round)
        x, self.state = self.mixer.absorb(state, self.x.clone(), shared, phase)
        self._take(x)
        found: Tensor = shortened
        return found

    def again(self, anchor: Tensor, messages: Tensor, present: Tensor, members: Sequence[str], round: int) -> Tensor:
        """Return the outer parameters (d,) after a round of broadcasts, from those before it; changes nothing."""
        edge: Any = self.mixer.edge
        silent = torch.zeros_like(messages[0])
        state, _ = edge.advance(edge.start(anchor), silent, silent, messages, present, members, round)
        settled: Tensor = edge.settled(state)
        return settled

    def reanchor(self, anchor: Tensor) -> None:
        """Continue from other outer parameters (d,), since more is known of earlier rounds. `advance` follows."""
        edge: Any = self.mixer.edge
        self.state = edge.moved(self.state, anchor)

    def settle(self, peer: str) -> None:
        """Close an edge in order."""
        self.memory.settle(peer)
        self._correct()

    def revoke(self, peer: str) -> bool:
        """Delete what is stored of a removed peer; return whether the remaining flows compensated for its flow."""
        self.state = self.memory.forgotten(self.state, peer)
        dominated = self.memory.revoke(peer)
        self._correct()
        return dominated

    def histories(self) -> dict[str, Tensor]:
        """Return what is stored beside the model, such as a rule's memory of peers, for a checkpoint."""
        return self.memory.histories(self.state)

    def recall(self, histories: dict[str, Tensor]) -> None:
        """Restore stored histories. Raises ValueError: they are another model's."""
        x, self.state = self.memory.recalled(self.x, self.state, histories)
        self._take(x)

    def install(self, x: Tensor) -> None:
        """Replace the model by another (d,), without edges."""
        self.x.copy_(x)
        self.restart()

    def check(self, x: Tensor | None) -> None:
        """Raises ValueError unless x is a finite model of our shape and dtype."""
        if x is None or x.shape != self.x.shape or x.dtype != self.x.dtype:
            raise ValueError("holds another model")
        if not finite(x):
            raise ValueError("holds numbers that are not finite")

    def _correct(self) -> None:
        self.state = self.mixer.corrected(self.state, self.memory.correction())

    def _absorb(self, shared: Tensor, phase: Phase) -> None:
        """The shared vector (D,) is this now; it may be the model itself."""
        x, self.state = self.mixer.absorb(self.state, self._writable(self.x), shared, phase)
        self._take(x)

    def _take(self, x: Tensor) -> None:
        with torch.no_grad():
            self.x.copy_(x)  # of itself it copies nothing


def _itself(vector: Tensor) -> Tensor:
    return vector
