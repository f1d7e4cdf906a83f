"""The engine's own process: `python -m starling.node.engine.process FD`, started by the daemon with one end of a socket pair as FD.

The loop looks for a call, else does one slice of work, else waits for a call; so a call waits for at most one local step.
The process ends when the pipe does, which is how it never outlives its daemon; nothing is saved then, because a daemon that
ends in order says Stop first. Signals that stop a whole process group are left to the daemon.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Protocol

from starling.node.engine.own_code import describe
from starling.node.rpc.calls import Evaluate, Evaluated, Reply, Request, Stop, Train, Trained
from starling.node.rpc.pipe import Failed, Pipe

GONE = (EOFError, BrokenPipeError, ConnectionResetError)  # the daemon's end of the pipe is closed


class Worker(Protocol):
    """What the loop drives: the engine."""

    @property
    def busy(self) -> bool:
        """There is a slice to do."""
        ...

    def handle(self, request: Request) -> Reply | None:
        """Answer a call; None: the answer comes out of `step`."""
        ...

    def step(self) -> Reply | None:
        """One slice of work, and the reply to Train or Evaluate when that was its last."""
        ...


def serve(worker: Worker, pipe: Pipe) -> None:
    """Answer calls until Stop.

    Raises:
        EOFError, BrokenPipeError, ConnectionResetError: the daemon is gone.
    """
    train = evaluate = 0  # ids of the calls that `step` will answer
    try:
        while True:
            if worker.busy and not pipe.ready():
                match worker.step():
                    case Trained() as reply:
                        pipe.send(train, reply)
                    case Evaluated() as reply:
                        pipe.send(evaluate, reply)
                continue
            call_id, request = pipe.receive()
            match request, worker.handle(request):
                case Train(), None:
                    train = call_id
                case Evaluate(), None:
                    evaluate = call_id
                case _, answer:
                    assert answer is not None, request
                    pipe.send(call_id, answer)
                    if isinstance(request, Stop):
                        return
    except GONE:
        raise
    except Exception as error:
        pipe.send(0, Failed(describe(error)))
        raise


def main() -> None:
    """Entry point of the child."""
    os.dup2(
        sys.stderr.fileno(), sys.stdout.fileno()
    )  # the founder's stdout is the invite alone, whatever a task prints
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from starling.node.engine.engine import Engine  # noqa: PLC0415 — torch takes a second, in which a Ctrl-C must not end us

    with socket.socket(fileno=int(sys.argv[1])) as sock, suppress(*GONE):  # the daemon is gone
        serve(Engine(), Pipe(sock))
    sys.stderr.flush()
    os._exit(0)  # all that is kept is on the disk; to take torch down module by module takes half a second


if __name__ == "__main__":
    main()
