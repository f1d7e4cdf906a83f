"""Let signals end a command in order, so that it can clean up."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from starling.node.platform import ENDING


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end a command in order, as Ctrl-C does; a second Ctrl-C does not interrupt the clean-up.

    Signals that are ignored stay so, as under nohup.
    """
    ours = [each for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN]

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {each: signal.signal(each, stop) for each in ours}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
