"""Swaps that push: each end gives a share of its vector away. Messages are sums since the edge began, so that a later one replaces a
lost one.

Shapes: D numbers of the shared vector, E numbers kept per edge.
"""

from dataclasses import dataclass

from starling.gossip.lazy_torch import Tensor, torch


@dataclass(frozen=True, slots=True)
class RunningSums:
    """A message is all we ever gave this peer, which takes the new part of it. Satisfies `starling.gossip.api.Swapping`.

    Invariant: Σ_i shared_i + Σ_edges (given_ij − seen_ji) never changes, whichever messages are lost, late or repeated. Messages must
    arrive exactly: what compression dropped would be lost for ever. E = 2·D: given, then seen of what the peer gave.
    After T rounds a float32 moves amounts in grains of 6e-8·T of themselves, though none is lost. A new edge starts new sums.

    Source: Spiridonoff, Olshevsky and Paschalidis 2020 (arXiv:1811.03982).
    """

    # the last number of the shared vector is a weight; a node gives nothing while it is below this. None: no weight
    floor: float | None = None

    def begin(self, origin: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(torch.cat((origin, origin), dim=-1))

    def message(self, edge_state: Tensor, local: Tensor, give: float | Tensor) -> Tensor:
        """Return all that was given so far, plus a share of this node's vector."""
        given, _ = edge_state.tensor_split(2, dim=-1)
        share = give * local
        if self.floor is not None:
            share = torch.where(local[..., -1:] < self.floor, 0.0, share)
        return given + share

    def sent(self, edge_state: Tensor, message: Tensor, local: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """Subtract the new part of the message."""
        given, seen = edge_state.tensor_split(2, dim=-1)
        return torch.cat((message, seen), dim=-1), given - message

    def received(self, edge_state: Tensor, message: Tensor, local: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """Plus the new part of the message, independent of `take`."""
        given, seen = edge_state.tensor_split(2, dim=-1)
        return torch.cat((given, message), dim=-1), message - seen

    def difference(self, edge_state: Tensor, message: Tensor, local: Tensor) -> Tensor | None:
        """Quotient of the new part, where the last number is a weight and positive."""
        _, seen = edge_state.tensor_split(2, dim=-1)
        share = message - seen
        if self.floor is None or not bool((share[..., -1:] > 0.0).all() & (local[..., -1:] > 0.0).all()):
            return None
        return share[..., :-1] / share[..., -1:] - local[..., :-1] / local[..., -1:]


@dataclass(frozen=True, slots=True)
class PullPush:
    """Pull the first half of a shared vector and push the second. Satisfies `starling.gossip.api.Swapping`.

        x_i += Σ_j w_ij·(x_j − x_i)                         x_j as received
        z_i  = (1 − Σ_j w_ji)·z_i + Σ_j (new in j's sum)    as `RunningSums`

    Models are mixed with weights whose rows sum to 1; Σ z is kept with weights whose columns do. E = D: the sums of the second half.

    Source: Pu et al. 2021, push-pull (arXiv:1810.06653).
    """

    def begin(self, origin: Tensor) -> Tensor:
        """Return running sums of the second half."""
        _, z = origin.tensor_split(2, dim=-1)
        return _SUMS.begin(z)

    def message(self, edge_state: Tensor, local: Tensor, give: float | Tensor) -> Tensor:
        """Return (…, D): the model, and the sum given of the other half."""
        x, z = local.tensor_split(2, dim=-1)
        return torch.cat((x, _SUMS.message(edge_state, z, give)), dim=-1)

    def sent(self, edge_state: Tensor, message: Tensor, local: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """Leave the model unchanged, and subtract the pushed share."""
        (_, pushed), (x, z) = message.tensor_split(2, dim=-1), local.tensor_split(2, dim=-1)
        edge_state, change = _SUMS.sent(edge_state, pushed, z, give)
        return edge_state, torch.cat((torch.zeros_like(x), change), dim=-1)

    def received(self, edge_state: Tensor, message: Tensor, local: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """Move towards the peer's model, and add its share."""
        (pulled, pushed), (x, z) = message.tensor_split(2, dim=-1), local.tensor_split(2, dim=-1)
        edge_state, change = _SUMS.received(edge_state, pushed, z, take)
        return edge_state, torch.cat((take * (pulled - x), change), dim=-1)

    def difference(self, edge_state: Tensor, message: Tensor, local: Tensor) -> Tensor:
        """Return the difference of the models."""
        return message.tensor_split(2, dim=-1)[0] - local.tensor_split(2, dim=-1)[0]


_SUMS = RunningSums()
