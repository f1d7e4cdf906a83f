"""The kinds of exchange that mixing algorithms ask for, and what some of them can do besides.

`kind_of` and `abilities_of` are the only places that look; everything else picks by their answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from starling.gossip.api import Averaging, Broadcasting, Common, Controlling, CorrectsInPlace, Gathering, Mixer, Replacing, Swapping
from starling.gossip.mix.base import MixerBase


class EdgeKind(Enum):
    """Kinds of exchange between two ends of an edge."""

    DIFFERENCES = "differences"  # both ends apply one difference of their models, with opposite signs
    SWAPS = "swaps"  # each end sends its own message
    COMMON = "common"  # each node sends all its peers the same message, and all reach one mean
    CONTROLS = "controls"  # the same, and stored messages correct local steps
    GATHERS = "gathers"  # each pulls the other's vector and combines what it has by a rule
    BROADCASTS = "broadcasts"  # each pulls the other's message, and all apply the same sum


ALIKE = frozenset({EdgeKind.COMMON, EdgeKind.CONTROLS})
"""What is drawn for a message is drawn by its sender and round."""
SWAPPED = frozenset({EdgeKind.SWAPS, *ALIKE})
PULLED = frozenset({EdgeKind.GATHERS, EdgeKind.BROADCASTS})
"""Answering such an exchange changes nothing at the node that answers."""
SENT_AS_RESPONSES = frozenset({*SWAPPED, EdgeKind.BROADCASTS})
"""All messages go through the codec of responses."""


_KINDS: Sequence[tuple[type, EdgeKind]] = (
    (Broadcasting, EdgeKind.BROADCASTS),
    (Gathering, EdgeKind.GATHERS),
    (Controlling, EdgeKind.CONTROLS),
    (Common, EdgeKind.COMMON),
    (Swapping, EdgeKind.SWAPS),
)
"""By protocol; one that extends another comes before it."""


def kind_of(edge: Averaging | Swapping | Gathering | Broadcasting) -> EdgeKind:
    """Return the kind of an edge, by the protocol of `starling.gossip.api` that it satisfies."""
    return next((kind for protocol, kind in _KINDS if isinstance(edge, protocol)), EdgeKind.DIFFERENCES)


@dataclass(frozen=True, slots=True)
class Abilities:
    """Abilities of a mixing algorithm, determined once."""

    kind: EdgeKind
    corrects: bool  # local steps may follow a direction other than the gradient
    replaces: bool  # a model may be mixed in place
    in_place: CorrectsInPlace | None  # corrects one node's gradient in place


def abilities_of(mixer: Mixer) -> Abilities:
    """Return the optional protocols of `starling.gossip.api` that a mixing algorithm satisfies."""
    return Abilities(
        kind_of(mixer.edge),
        type(mixer).correct is not MixerBase.correct,
        isinstance(mixer, Replacing) and mixer.replaces,
        mixer if isinstance(mixer, CorrectsInPlace) else None,
    )
