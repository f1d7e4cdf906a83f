"""Swaps by which the ends of an edge agree on copies of each other's vector and average those.

Shapes: D numbers of the shared vector, E = 2·D kept per edge: our copy, as the peer holds it; then the peer's.
"""

from starling.gossip.bounds import PositiveShare, parameters
from starling.gossip.lazy_torch import Tensor, torch


@parameters
class PublicCopies:
    """x_i += γ·Σ_j w_ij·(x̂_j − x̂_i), where both ends of the edge hold the copy x̂ of x; it moves by the decoded Q(x − x̂), never by x.
    Satisfies `starling.gossip.api.Swapping`.

    What Q drops stays in x − x̂ and is sent later, so any contraction will do if γ is small enough. With equal weights both ways
    the two changes are the same bits with opposite signs, so the mean is kept however wrong the copies are. They must be the same
    at both ends, so swaps happen at both or at neither: one lost message would make them differ for ever.

    Deviation: the paper has one copy of a node for all its neighbors and keeps only their weighted sum, which takes a fixed mixing
    matrix and a network that loses nothing. Here each edge has its own two: 2·D per edge instead of 2·D per node.

    Source: Koloskova, Stich and Jaggi 2019 (arXiv:1902.00340).
    """

    gamma: PositiveShare  # consensus step γ, in (0, 1]. From δ/5 to δ for a compressor of contraction δ; more diverges

    def begin(self, origin: Tensor) -> Tensor:
        """Return two copies of the origin."""
        return torch.cat((origin, origin), dim=-1)

    def message(self, edge_state: Tensor, local: Tensor, give: float | Tensor) -> Tensor:
        """Return the difference of our vector from its copy."""
        return local - edge_state.tensor_split(2, dim=-1)[0]

    def sent(self, edge_state: Tensor, message: Tensor, local: Tensor, give: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return our copy moves, our vector does not."""
        ours, remote = edge_state.tensor_split(2, dim=-1)
        return torch.cat((ours + message, remote), dim=-1), torch.zeros_like(local)

    def received(self, edge_state: Tensor, message: Tensor, local: Tensor, take: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the peer's copy moves, and our vector by the difference of the copies."""
        ours, remote = edge_state.tensor_split(2, dim=-1)
        remote = remote + message
        return torch.cat((ours, remote), dim=-1), self.gamma * take * (remote - ours)

    def difference(self, edge_state: Tensor, message: Tensor, local: Tensor) -> Tensor:
        """Return the difference from this node's vector to the peer's copy."""
        return edge_state.tensor_split(2, dim=-1)[1] + message - local
