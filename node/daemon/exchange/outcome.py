"""Result of a round's exchanges."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from starling.gossip.exchange.commands import Outcome
from starling.node.rpc import calls


class Waited(NamedTuple):
    """Seconds >= 0 that a node waited beyond what is usual, and the peers awaited last, sorted."""

    seconds: float = 0.0
    peers: tuple[str, ...] = ()


NOT_WAITED = Waited()


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """Result of a round's exchanges."""

    round: int
    outcomes: Mapping[str, Outcome]  # by peer
    behind: int
    """The round that peers have credibly reached, if they left this node behind, else `round`: exchanging less often loses nothing."""
    distance: float | None = None  # as in `starling.node.rpc.calls.Done`
    diverged: calls.Divergence | None = None  # likewise
    waited: Waited = NOT_WAITED
