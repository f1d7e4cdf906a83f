"""The kinds of exchange that mixing algorithms ask for. `kind_of` is the only place that looks; everything else picks by its answer."""

from enum import Enum

from starling.gossip.mix.catalogue import Kind, broadcasts, controls, gathers, swaps, tracks


class EdgeKind(Enum):
    """What two ends of an edge do in an exchange."""

    DIFFERENCES = "differences"  # both apply one difference of their models, with opposite signs
    DIRECTIONS = "directions"  # the same, and one difference of their mean gradients
    SWAPS = "swaps"  # each sends a message of its own
    CONTROLS = "controls"  # the same, and what is remembered of the messages corrects local steps
    GATHERS = "gathers"  # each pulls the other's vector and combines what it has by a rule
    BROADCASTS = "broadcasts"  # each pulls the other's message, and all apply the same sum


AVERAGES = frozenset({EdgeKind.DIFFERENCES, EdgeKind.DIRECTIONS})
SWAPPED = frozenset({EdgeKind.SWAPS, EdgeKind.CONTROLS})
PULLED = frozenset({EdgeKind.GATHERS, EdgeKind.BROADCASTS})
"""Answering such an exchange changes nothing at the node that answers."""


def kind_of(edge: Kind) -> EdgeKind:
    """Return the kind of an edge, by the protocol of `starling.gossip.api` that it satisfies."""
    if broadcasts(edge):
        return EdgeKind.BROADCASTS
    if gathers(edge):
        return EdgeKind.GATHERS
    if controls(edge):
        return EdgeKind.CONTROLS
    if swaps(edge):
        return EdgeKind.SWAPS
    return EdgeKind.DIRECTIONS if tracks(edge) else EdgeKind.DIFFERENCES
