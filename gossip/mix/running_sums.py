"""Swaps that push: each end gives a share of what it has away. Messages are sums since the edge began, so that a later one makes up
for a lost one.

Shapes: D numbers of the shared vector, E numbers kept per edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from starling.gossip.lazy_torch import Tensor, torch


@dataclass(frozen=True, slots=True)
class RunningSums:
    """A message is all we ever gave this peer; it takes what is new in it. Satisfies `starling.gossip.api.Swapping`.

    Invariant: Σ_i shared_i + Σ_edges (given_ij − seen_ji) never changes, whichever messages are lost, late or repeated: what was
    given and not seen is on its way. Messages must arrive as they were sent, in value; what compression dropped would be dropped for
    good. E = 2·D: what we gave, then what we have seen of what the peer gave.

    Sums grow with the length of a run and their resolution shrinks: after T rounds a float32 moves amounts in grains of 6e-8·T of
    themselves, though none is lost. A new edge starts new sums.

    Source: Spiridonoff, Olshevsky and Paschalidis 2020 (arXiv:1811.03982).

    Args:
        floor: the last number of the shared vector is a weight; a node gives nothing while it is below this. None: it is not.
    """

    floor: float | None = None
    exact: ClassVar[bool] = True
    static: ClassVar[bool] = False

    def begin(self, origin: Tensor) -> Tensor:
        """Nothing was given, nothing seen."""
        return torch.zeros_like(torch.cat((origin, origin), dim=-1))

    def message(self, kept: Tensor, mine: Tensor, give: float | Tensor) -> Tensor:
        """What we gave so far, and a share of what we have."""
        given, _ = kept.tensor_split(2, dim=-1)
        share = give * mine
        if self.floor is not None:
            share = torch.where(mine[..., -1:] < self.floor, 0.0, share)
        return given + share

    def sent(self, kept: Tensor, message: Tensor, mine: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """What is new in it is no longer ours."""
        given, seen = kept.tensor_split(2, dim=-1)
        return torch.cat((message, seen), dim=-1), given - message

    def received(self, kept: Tensor, message: Tensor, mine: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """What is new in it is ours: how much, the peer has decided."""
        given, seen = kept.tensor_split(2, dim=-1)
        return torch.cat((given, message), dim=-1), message - seen

    def difference(self, kept: Tensor, message: Tensor, mine: Tensor) -> Tensor | None:
        """Quotients of what is new, where the last number is a weight and there is some of it."""
        _, seen = kept.tensor_split(2, dim=-1)
        share = message - seen
        if self.floor is None or not bool((share[..., -1:] > 0.0).all() & (mine[..., -1:] > 0.0).all()):
            return None
        return share[..., :-1] / share[..., -1:] - mine[..., :-1] / mine[..., -1:]


@dataclass(frozen=True, slots=True)
class PullPush:
    """Of a shared vector of two halves the first is pulled and the second pushed. Satisfies `starling.gossip.api.Swapping`.

        x_i += Σ_j w_ij·(x_j − x_i)                     the peer's as it was told
        z_i  = (1 − Σ_j w_ji)·z_i + Σ_j (new in j's sum)    as `RunningSums`

    So models meet with weights whose rows sum to 1, and Σ z is kept with weights whose columns do, or shares lost on the way: the two
    need not be the same weights. E = D: the sums are about the second half.

    Source: Pu et al. 2021, push-pull (arXiv:1810.06653).
    """

    exact: ClassVar[bool] = True
    static: ClassVar[bool] = False

    def begin(self, origin: Tensor) -> Tensor:
        """Nothing was given, nothing seen."""
        _, z = origin.tensor_split(2, dim=-1)
        return _SUMS.begin(z)

    def message(self, kept: Tensor, mine: Tensor, give: float | Tensor) -> Tensor:
        """(…, D): the model, and the sum of what we gave of the other half."""
        x, z = mine.tensor_split(2, dim=-1)
        return torch.cat((x, _SUMS.message(kept, z, give)), dim=-1)

    def sent(self, kept: Tensor, message: Tensor, mine: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """The model stays; the share is gone."""
        _, pushed = message.tensor_split(2, dim=-1)
        x, z = mine.tensor_split(2, dim=-1)
        kept, change = _SUMS.sent(kept, pushed, z, give)
        return kept, torch.cat((torch.zeros_like(x), change), dim=-1)

    def received(self, kept: Tensor, message: Tensor, mine: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """Towards the peer's model; and its share."""
        pulled, pushed = message.tensor_split(2, dim=-1)
        x, z = mine.tensor_split(2, dim=-1)
        kept, change = _SUMS.received(kept, pushed, z, take)
        return kept, torch.cat((take * (pulled - x), change), dim=-1)

    def difference(self, kept: Tensor, message: Tensor, mine: Tensor) -> Tensor:
        """Of the models."""
        pulled, _ = message.tensor_split(2, dim=-1)
        x, _ = mine.tensor_split(2, dim=-1)
        return pulled - x


_SUMS = RunningSums()
