"""A worker: `python -m node.simulate`, started by the command line, which hands it one run after another (`node.simulate.worker_protocol`).

It ends when its standard input is closed, at once and whatever it is computing: nothing of it is worth saving, and so it never
outlives who started it. Ctrl-C is the other end's to answer.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from typing import BinaryIO

from starling.node.simulate import worker_protocol

_PAUSE_S = 0.1  # between two words about one run


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0) as replies:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not come between
        _serve(requests, replies)


def _listen(requests: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def _serve(requests: queue.SimpleQueue[bytes], replies: BinaryIO) -> None:
    from starling.gossip.errors import ConfigError, GossipError  # noqa: PLC0415 — torch takes a second, in which stdin may close
    from starling.node.simulate.engines import check, simulate  # noqa: PLC0415

    while True:
        request = worker_protocol.request(requests.get())
        try:
            match request:
                case worker_protocol.Check(scenarios):
                    for scenario in scenarios:
                        check(scenario)
                    reply: worker_protocol.Reply = worker_protocol.Checked()
                case worker_protocol.Run(cell, scenario):
                    reply = worker_protocol.Ended(cell, simulate(scenario, _Told(cell, replies)))
        except ConfigError as error:
            reply = worker_protocol.Refused(str(error))
        except GossipError as error:
            reply = worker_protocol.Failed(str(error))
        except Exception as error:  # the other end says it in one line; ours are on standard error
            replies.write(
                worker_protocol.line(worker_protocol.Failed(" ".join(f"{type(error).__name__}: {error}".split())))
            )
            raise
        replies.write(worker_protocol.line(reply))


class _Told:
    """Progress of one run, told not too often."""

    def __init__(self, cell: int, replies: BinaryIO) -> None:
        self._cell = cell
        self._replies = replies
        self._next_s = 0.0

    def __call__(self, round: int, line: str) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _PAUSE_S
            self._replies.write(worker_protocol.line(worker_protocol.Advanced(self._cell, round, line)))


if __name__ == "__main__":
    main()
