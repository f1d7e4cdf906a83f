"""The state of a node's edges: flows, copies of messages, or a rule's memory of peers.

Shapes: D numbers of the shared vector, k peers, s numbers that a rule remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, cast

from starling.gossip.api import Averaging, Broadcasting, Common, Controlling, Effect, Swapped, Swapping
from starling.gossip.compress.support import Full
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix import edge_ledger
from starling.gossip.mix.base import PlainAveraging
from starling.gossip.mix.edge_ledger import Ledger
from starling.gossip.mix.encoded_effects import EncodedEffect, decoded
from starling.gossip.mix.kinds import EdgeKind
from starling.gossip.mix.rule_memory import assign_slots, cleared, slot_of

Committed = Effect | Swapped | EncodedEffect
"""The effect of one committed pairwise exchange on this end."""


@dataclass(frozen=True, slots=True)
class Edges:
    """The parameters of an edge memory."""

    edge: Any  # the kind's protocol in `starling.gossip.api`
    shared: Tensor  # (D,) of the shared vector's length, dtype and device
    origin: Callable[[], Tensor]  # gives (D,) the shared vector that all nodes began with
    settled_edges: int  # flows of closed edges that stay revocable


class EdgeMemory(Protocol):
    """The state of one node's edges.

    Attributes:
        compares: whether the shared vector that all nodes began with is asked for often.
    """

    compares: ClassVar[bool]

    @property
    def ledger(self) -> Ledger:
        """Flows of all edges; without any where none are kept."""

    def correction(self) -> Tensor:
        """Return (D,) the sum of what all edges contribute to the correction of local steps; zeros where they do not."""

    def book(self, done: Sequence[Committed], shared: Tensor) -> tuple[Tensor, bool]:
        """Add effects to `shared` (D,), which may be overwritten -> the sum, and whether the correction has changed."""

    def edge_only(self, done: Committed, form: Tensor) -> tuple[Effect | EncodedEffect, bool]:
        """Book an effect on its edge alone -> the effect that remains for the vector, and whether the correction has changed.

        `form` (D,) has the length, dtype and device of the shared vector.
        """

    def settle(self, peer: str) -> None:
        """Close an edge in order."""

    def revoke(self, peer: str) -> bool:
        """Delete what is kept of a peer that is gone -> whether the other flows compensated for its flow."""

    def settled(self, state: Any, x: Tensor) -> Tensor:
        """Return (d,) the model between rounds: where that is equal at all nodes it is in the state, else x."""

    def forgotten(self, state: Any, peer: str) -> Any:
        """Return the mixing algorithm's state without a peer that is gone."""

    def histories(self, state: Any) -> dict[str, Tensor]:
        """Return what is stored beside the model, by peer or by name; may be empty."""

    def recalled(self, x: Tensor, state: Any, histories: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        """Return the model (d,) from which to continue, and the state with the stored histories of peers, as far as they fit.

        Raises ValueError: they are another model's.
        """


class Flows:
    """A flow per edge, changed by effects of an `Averaging` edge only."""

    compares: ClassVar[bool] = False

    def __init__(self, edges: Edges) -> None:
        self._rule: Averaging = edges.edge
        self._settled_edges = edges.settled_edges
        self.ledger = edge_ledger.opened(edges.shared)

    def correction(self) -> Tensor:
        """Return (D,) the sum of all flows."""
        return self.ledger.total

    def book(self, done: Sequence[Committed], shared: Tensor) -> tuple[Tensor, bool]:
        """Add effects to `shared`, and to the flows of their edges."""
        effects = cast("Sequence[Effect | EncodedEffect]", done)  # messages are swapped where no flows are kept
        moved = any(map(edge_ledger.moves, effects))
        shared, self.ledger = self._averaged(map(decoded, effects), shared)
        return shared, moved

    def edge_only(self, done: Committed, form: Tensor) -> tuple[Effect | EncodedEffect, bool]:
        """Add an effect to its flow alone."""
        assert not isinstance(done, Swapped)
        _, moved = self.book([done], torch.zeros_like(form))
        return replace(done, gain=0.0, keeps=1.0), moved

    def settle(self, peer: str) -> None:
        """Keep the flow of a closed edge revocable until enough others were closed."""
        self.ledger = edge_ledger.settle(self.ledger, peer, self._settled_edges)

    def revoke(self, peer: str) -> bool:
        """Delete the flow of a peer."""
        before = self.ledger
        self.ledger = edge_ledger.revoke(before, peer)
        return edge_ledger.dominated(before, self.ledger)

    def settled(self, state: Any, x: Tensor) -> Tensor:
        """Return x: models differ."""
        return x

    def forgotten(self, state: Any, peer: str) -> Any:
        """Return the state: it knows no peers."""
        return state

    def histories(self, state: Any) -> dict[str, Tensor]:
        return {}

    def recalled(self, x: Tensor, state: Any, histories: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        """Return both unchanged."""
        return x, state

    def _averaged(self, effects: Iterable[Effect], shared: Tensor) -> tuple[Tensor, Ledger]:
        return edge_ledger.average(self._rule, self.ledger, shared, effects, owned=True)


class NoEdges(Flows):
    """An exchange without state of edges."""

    def __init__(self, edges: Edges) -> None:
        super().__init__(replace(edges, edge=PlainAveraging(), settled_edges=0))

    def settle(self, peer: str) -> None: ...

    def revoke(self, peer: str) -> bool:
        """Return False: there is nothing to delete."""
        return False


class CommonModel(NoEdges):
    """An exchange without state, since all nodes add the same sum to one model."""

    def __init__(self, edges: Edges) -> None:
        super().__init__(edges)
        self._edge: Broadcasting = edges.edge

    def settled(self, state: Any, x: Tensor) -> Tensor:
        """Return the outer parameters."""
        return self._edge.settled(state)

    def histories(self, state: Any) -> dict[str, Tensor]:
        """Return what was not sent, say."""
        return self._edge.kept(state)

    def recalled(self, x: Tensor, state: Any, histories: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        """Continue from the stored state. Raises ValueError: it is another model's."""
        return self._edge.resumed(state, histories)


class PublicCopies(NoEdges):
    """Copies that both ends of an edge have of each other's messages."""

    compares: ClassVar[bool] = True

    def __init__(self, edges: Edges) -> None:
        super().__init__(edges)
        self._edge: Swapping = edges.edge
        self._origin = edges.origin
        self.copies: dict[str, Tensor] = {}

    def of(self, peer: str) -> Tensor:
        """Return (E,) what is kept of the edge to a peer, at first what every new edge begins with."""
        kept = self.copies.get(peer)
        return self._edge.begin(self._origin()) if kept is None else kept

    def book(self, done: Sequence[Committed], shared: Tensor) -> tuple[Tensor, bool]:
        """Add both halves of each swap, then effects that remained of swaps with peers that are gone."""
        swapped = [each for each in done if isinstance(each, Swapped)]
        shared, self.copies = self._swapped(shared, swapped)
        effects = [each for each in done if not isinstance(each, Swapped)]
        shared, self.ledger = self._averaged(map(decoded, effects), shared)
        return shared, False

    def _swapped(self, shared: Tensor, swaps: Sequence[Swapped]) -> tuple[Tensor, dict[str, Tensor]]:
        return edge_ledger.swap(self._edge, self.copies, shared, self._origin(), swaps)

    def edge_only(self, done: Committed, form: Tensor) -> tuple[Effect | EncodedEffect, bool]:
        """Apply a swap to its edge only; its effect on the vector remains, as an effect."""
        if not isinstance(done, Swapped):
            return super().edge_only(done, form)
        change, self.copies = edge_ledger.swap(self._edge, self.copies, torch.zeros_like(form), self._origin(), [done])
        return Effect(done.peer, Full(), change, 1.0, 0.0), False

    def settle(self, peer: str) -> None:
        """Delete what is kept of an edge."""
        self.copies.pop(peer, None)

    def revoke(self, peer: str) -> bool:
        """Delete what is kept of a peer."""
        self.copies.pop(peer, None)
        return False


class CommonCopies(PublicCopies):
    """Copies of messages that are the same for all peers, which all compute the same mean."""

    _edge: Common

    def settled(self, state: Any, x: Tensor) -> Tensor:
        """Return the model that all have between rounds."""
        return self._edge.settled(state)

    def _swapped(self, shared: Tensor, swaps: Sequence[Swapped]) -> tuple[Tensor, dict[str, Tensor]]:
        return edge_ledger.swap_common(self._edge, self.copies, shared, self._origin(), swaps)


class ControlCopies(CommonCopies):
    """Copies from which both ends estimate the other's updates; the difference of the two corrects local steps."""

    _edge: Controlling

    def correction(self) -> Tensor:
        """Return (D,) the sum over all edges of the difference of both ends' estimated updates."""
        if not self.copies:
            return self.ledger.total
        return self._edge.flows(torch.stack([self.copies[peer] for peer in sorted(self.copies)]))

    def book(self, done: Sequence[Committed], shared: Tensor) -> tuple[Tensor, bool]:
        """Apply swaps as `CommonCopies`; any swap changes the correction."""
        shared, _ = super().book(done, shared)
        return shared, any(isinstance(each, Swapped) for each in done)


class RuleMemory(NoEdges):
    """A rule's memory of some peers; the numbers are part of the mixing algorithm's state, as `kept` (s,)."""

    def __init__(self, edges: Edges) -> None:
        super().__init__(edges)
        self._slots: int = edges.edge.rule.memory_slots
        self._taken: dict[str, int] = {}

    def assigned(self, state: Any, requested: Sequence[str], present: Tensor) -> tuple[Any, Tensor | None, dict[str, int]]:
        """Give slots to new peers -> the state with these slots empty, (k,) the slots of `requested`, and what `keep` takes."""
        if not self._slots:
            return state, None, self._taken
        taken, kept, slots = assign_slots(self._taken, requested, present.tolist(), state.kept, self._slots)
        return replace(state, kept=kept), slots, taken

    def keep(self, taken: dict[str, int]) -> None:
        """Adopt the slots that `assigned` gave."""
        self._taken = taken

    def forgotten(self, state: Any, peer: str) -> Any:
        """Return the state without a peer that is gone."""
        if peer not in self._taken:
            return state
        return replace(state, kept=cleared(state.kept, self._slots, [self._taken.pop(peer)]))

    def histories(self, state: Any) -> dict[str, Tensor]:
        """Return a copy of what the rule remembers, by peer."""
        return {peer: slot_of(state.kept, self._slots, slot).clone() for peer, slot in self._taken.items()}

    def recalled(self, x: Tensor, state: Any, histories: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        """Return the unchanged model, and the state with the stored histories of peers, as far as there are slots and they fit."""
        if not histories or not self._slots:
            return x, state
        kept = state.kept.clone()
        for slot, (peer, history) in enumerate(sorted(histories.items())[: self._slots]):
            place = slot_of(kept, self._slots, slot)
            if history.shape == place.shape:
                self._taken[peer] = slot
                place.copy_(history)
        return x, replace(state, kept=kept)


MEMORIES: Mapping[EdgeKind, Callable[[Edges], EdgeMemory]] = MappingProxyType(
    {
        EdgeKind.DIFFERENCES: Flows,
        EdgeKind.SWAPS: PublicCopies,
        EdgeKind.COMMON: CommonCopies,
        EdgeKind.CONTROLS: ControlCopies,
        EdgeKind.GATHERS: RuleMemory,
        EdgeKind.BROADCASTS: CommonModel,
    }
)
"""What is kept of the edges of each kind."""
