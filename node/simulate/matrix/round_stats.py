"""What came of a round's meetings, for whoever counts time and bytes.

Shapes: m meetings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starling.node.simulate.matrix.batch import Turn


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """What came of a round's meetings. All (m,), in their order.

    Args:
        committed: at the initiator, and at the responder unless `unproven`. Of messages with fates of their own: both arrived.
        unproven: the responder does not know yet.
        initiator: row.
        responder: row.
        request_bytes: payload from initiator to responder; counted where lost as well.
        response_bytes: payload from responder to initiator; 0 where lost.
    """

    committed: NDArray[np.bool_]
    unproven: NDArray[np.bool_]
    initiator: NDArray[np.int64]
    responder: NDArray[np.int64]
    request_bytes: NDArray[np.int64]
    response_bytes: NDArray[np.int64]


def done(turn: Turn, request: NDArray[np.int64], response: NDArray[np.int64], *, atomic: bool) -> Done:
    """What came of a turn whose payloads have these sizes; with messages of their own fates unless `atomic`."""
    committed = ~turn.lost if atomic else ~(turn.forth_lost | turn.back_lost)
    unproven = turn.unproven if atomic else np.zeros_like(turn.unproven)
    return Done(committed, unproven, turn.asking, turn.answering, request, response)
