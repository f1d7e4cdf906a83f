"""The shape of an overlay, and what kinds have in common. Apart from `starling.gossip.api`, which names torch.

Shapes: n members, ranks 0 … n − 1.
"""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable


class Overlay(Protocol):
    """A sequence of mixing matrices W over n ranks, one row at a time."""

    @property
    def symmetric(self) -> bool:
        """Return whether W equals its transpose in every round."""

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Weights rank gives to what it receives from others in this round: {other rank: w > 0}; its own is 1 − Σ.

        Raises ValueError where the kind is undefined for n members.
        """

    def period(self, n: int) -> int | None:
        """Rounds after which the sequence repeats; None if it does not."""


class LastingEdges(Protocol):
    """The edges that a node keeps in clock pace, changed as little as possible under churn. No clock, no messages."""

    @property
    def peers(self) -> tuple[str, ...]:
        """Return peers with an edge, sorted."""

    def visits(self, turn: int) -> tuple[str, ...]:
        """Return the peers of which one is visited in a turn."""

    def measured(self, peer: str, bytes_per_s: float) -> None:
        """Record the rate of an exchange with a peer, >= 0; 0: it failed."""

    def update(self, me: str, alive: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return peers to open an edge to, most wanted first, and peers whose edge to close in order."""

    def accept(self, peer: str) -> bool:
        """Return whether an edge opened by a live peer is kept."""

    def drop(self, peer: str) -> None:
        """The other end refused or closed the edge."""


class Static:
    """W is the same in every round."""

    __slots__ = ()

    def period(self, n: int) -> int:
        """Return 1."""
        return 1


class Aperiodic:
    """An overlay whose W is drawn in every round."""

    __slots__ = ()

    def period(self, n: int) -> None:
        """Return None: it never repeats."""
        return


@runtime_checkable
class Circulant(Protocol):
    """An overlay that looks the same from every rank: rank i receives from i + s mod n with weight w_s.

    Its columns are its rows mirrored, so the other direction of a link costs nothing to find.
    """

    __slots__ = ()

    def shifts(self, n: int, round: int) -> Mapping[int, float]:
        """Return {s: w_s}, 0 < s < n."""

    def row(self, rank: int, n: int, round: int) -> Mapping[int, float]:
        """Return one entry per shift."""
        return {(rank + shift) % n: weight for shift, weight in self.shifts(n, round).items()}


def doublings(n: int) -> int:
    """Tau = ⌈log2 n⌉, the number of powers of two below n."""
    return (n - 1).bit_length()
