"""The purpose of a round: local steps or not, and its place in an averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from starling.gossip.overlay.api import Overlay


@dataclass(frozen=True, slots=True)
class Stage:
    """The purpose of a round."""

    local: bool  # whether local steps are done in it
    first: bool  # its exchanges begin an averaging: of the nodes' current vectors
    last: bool  # its exchanges complete an averaging: afterwards nodes have the average


ORDINARY = Stage(local=True, first=True, last=True)  # a complete round


@runtime_checkable
class Staged(Protocol):
    """An overlay with rounds of several kinds."""

    def cycle(self, n: int) -> int:
        """Rounds after which they are what they were, of n members."""

    def stage(self, n: int, round: int) -> Stage:
        """Return the purpose of a round, with n members."""


def stage(overlay: Overlay, n: int, round: int) -> Stage:
    """Return the purpose of a round, with n members; ORDINARY unless the overlay says otherwise."""
    return overlay.stage(n, round) if isinstance(overlay, Staged) else ORDINARY


def turn(overlay: Overlay, n: int, round: int) -> int:
    """Number of the averaging that this round belongs to: of its cycle, or of the round itself."""
    return round // overlay.cycle(n) if isinstance(overlay, Staged) else round
