"""One stream of a yamux session: its windows, and which ends have finished."""

from dataclasses import dataclass

INITIAL_WINDOW = 256 << 10


@dataclass(slots=True)
class StreamState:
    """Credit of both ends, in bytes; `inbound`: the peer opened it."""

    inbound: bool
    steady: bool = False  # whether its window does not grow
    send_credit: int = INITIAL_WINDOW
    receive_credit: int = INITIAL_WINDOW
    window: int = INITIAL_WINDOW  # most bytes that may be received and not consumed
    consumed: int = 0  # bytes consumed since the last window update
    we_finished: bool = False
    they_finished: bool = False
