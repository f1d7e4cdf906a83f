"""Parallel SGD of compressed updates: everybody tells everybody the same, and all replicas make the same step.

Shapes: d parameters, E numbers kept per edge.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

from starling.gossip.api import Phase
from starling.gossip.compress.feedback import FEEDBACKS, Feedback
from starling.gossip.lazy_torch import Generator, Tensor, torch
from starling.gossip.mix.dsgd import Origin


@dataclass(frozen=True, slots=True)
class _Known:
    """A compressor whose result is known: the exchange has compressed, or None while it has yet to."""

    result: Tensor | None

    def contraction(self, dim: int) -> float:
        """Whatever was dropped, it was not here."""
        return 1.0

    def compress(self, x: Tensor, generator: Generator) -> Tensor:
        """The result."""
        return x if self.result is None else self.result


@dataclass(frozen=True, slots=True)
class AllGather:
    """Swaps of updates u, each with error feedback of its own. Satisfies `starling.gossip.api.Swapping`.

        message    what `feedback` makes of u, before the exchange compresses it
        change     −u and the weighted sum of all estimates, our own as the peers have it

    With n nodes and weights 1/n that leaves (1/n)·Σ_j û_j, the same at every node but for the order of additions. Where a link is
    missing our own u counts instead of the peer's û, so the mean over nodes still moves by the mean update; but what the
    peer did not hear it never will, and nothing pulls replicas together again. E is the sender's state, our own estimate
    and the peer's: 2·d and up to 2·d more.

    Args:
        feedback: what becomes of what the exchange drops.
    """

    feedback: Feedback
    exact: ClassVar[bool] = False
    static: ClassVar[bool] = True

    def begin(self, origin: Tensor) -> Tensor:
        """Nothing was said."""
        parts = len(_parts(self.feedback.start(origin[..., :0]))) + 2
        return torch.zeros_like(origin).repeat(*(1 for _ in origin.shape[:-1]), parts)

    def message(self, kept: Tensor, mine: Tensor, give: float | Tensor) -> Tensor:
        """What the exchange is to compress."""
        state, _, _ = self._open(kept, mine)
        message, _ = self.feedback.compress(state, mine, _Known(None), torch.Generator())
        return message

    def sent(self, kept: Tensor, message: Tensor, mine: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """The memory learns what was dropped. Of all n − 1 links each stands for the share w/(1 − w) of our own estimate."""
        state, own, theirs = self._open(kept, mine)
        _, state = self.feedback.compress(state, mine, _Known(message), torch.Generator())
        own = self.feedback.receive(own, message)
        return torch.cat((*_parts(state), own, theirs), dim=-1), give / (1.0 - give) * (give * own - mine)

    def received(self, kept: Tensor, message: Tensor, mine: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """The peer's estimate, weighted."""
        state, own, theirs = self._open(kept, mine)
        theirs = self.feedback.receive(theirs, message)
        return torch.cat((*_parts(state), own, theirs), dim=-1), take * theirs

    def difference(self, kept: Tensor, message: Tensor, mine: Tensor) -> None:
        """Nobody says where its model is."""

    def _open(self, kept: Tensor, mine: Tensor) -> tuple[Any, Tensor, Tensor]:
        """The sender's state, our own estimate, the peer's."""
        *parts, own, theirs = kept.tensor_split(kept.shape[-1] // mine.shape[-1], dim=-1)
        return _state(self.feedback.start(mine[..., :0]), parts), own, theirs


@dataclass(frozen=True, slots=True)
class Psgd:
    """x <- x − (1/n)·Σ_j û_j, where û_j is what node j's local steps add up to, as far as its messages tell.

    On the `complete` overlay, whose links all weigh 1/n. The compressor is that of the exchange. Nodes remain replicas of one model
    if each of them tells all its peers the same: whole vectors or the largest values, with codecs that do not round by chance. A mask or
    chance differs between edges; `ef` bounds what replicas then differ by, under `ef21` and its kin it adds up.

    With whole exact messages this is parallel SGD, with K local steps local SGD. CocktailSGD is `ef` with a mask, top-k and few bits.

    Source: Stich, Cordonnier and Jaggi 2018 (arXiv:1809.07599); the schemes of `starling.gossip.compress.feedback` name theirs.

    Args:
        feedback: one of them. Its update is lr·gradient summed over local steps.
    """

    feedback: Feedback
    asynchronous: ClassVar[bool] = False
    static: ClassVar[bool] = True

    @property
    def edge(self) -> AllGather:
        """The memories."""
        return AllGather(self.feedback)

    def size(self, dim: int) -> int:
        """One vector: the update."""
        return dim

    def start(self, x: Tensor) -> Origin:
        """Where the first round's update begins."""
        return Origin(x.clone())

    def correct(self, state: Origin, gradient: Tensor) -> tuple[Tensor, Origin]:
        """The gradient itself."""
        return gradient, state

    def publish(self, state: Origin, x: Tensor, phase: Phase) -> tuple[Tensor, Origin]:
        """As it is."""
        return x, state

    def shared(self, state: Origin, x: Tensor) -> Tensor:
        """How far the local steps went down."""
        return state.origin - x

    def absorb(self, state: Origin, x: Tensor, shared: Tensor, phase: Phase) -> tuple[Tensor, Origin]:
        """The mean of all updates instead of our own."""
        mixed = state.origin - shared
        return mixed, Origin(mixed.clone())

    def corrected(self, state: Origin, flows: Tensor) -> Origin:
        """There are no flows."""
        return state


def psgd(
    feedback: str = "ef",
    feedback_beta: float = 0.1,
    feedback_control: float = 0.02,
    feedback_momentum: float = 0.9,
) -> Psgd:
    """Parallel SGD with an error feedback scheme.

    Args:
        feedback: one of none, ef, ef21, ef21_sgdm, econtrol, dgc.
        feedback_beta: of ef21_sgdm, weight of the newest update, in (0, 1].
        feedback_control: of econtrol, share of the memory in each message, in (0, 1].
        feedback_momentum: of dgc, in [0, 1).
    """
    names = [name for name in FEEDBACKS if name != "demo"]  # which steps along a sign
    if feedback not in names:
        raise ValueError(f"feedback must be one of {', '.join(names)}, got {feedback!r}")
    params = {
        "ef21_sgdm": {"beta": feedback_beta},
        "econtrol": {"control": feedback_control},
        "dgc": {"momentum": feedback_momentum},
    }.get(feedback, {})
    return Psgd(FEEDBACKS[feedback](**params))


def _parts(state: Any) -> list[Tensor]:
    """The tensors of a feedback's state."""
    if state is None:
        return []
    if isinstance(state, torch.Tensor):
        return [state]
    return [getattr(state, field.name) for field in fields(state)]


def _state(template: Any, parts: list[Tensor]) -> Any:
    """The state that `_parts` took apart."""
    if is_dataclass(template):
        made: Any = type(template)
        return made(*parts)
    return parts[0] if parts else None
