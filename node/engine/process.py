"""The engine's own process: `python -m starling.node.engine.process FD`, started by the daemon with one end of a socket pair as FD.

The loop answers a call, else does one slice of work, else waits for a call; so a call waits for at most one local step, and for a large
model, calls of exchanges are answered while its gradient is computed (`starling.node.engine.background_answers`). The process ends with the
pipe, so it never outlives its daemon; nothing is saved then, as an orderly daemon sends Stop first. It ignores signals to a whole process
group, which the daemon handles.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from starling.gossip.errors import ConfigError
from starling.node import platform
from starling.node.engine.user_code import describe, place
from starling.node.rpc.calls import Evaluate, Open, Opened, Reply, Stop, Train, Trained
from starling.node.rpc.pipe import Failed, Pipe

if TYPE_CHECKING:
    from starling.node.engine.background_answers import BackgroundAnswers
    from starling.node.engine.worker import Worker
    from starling.node.rpc.calls import Request

ANSWERED: Mapping[type[Reply], type[Request]] = MappingProxyType({Trained: Train})
"""Calls that replies of `step` are to, if not Evaluate."""
GONE = (EOFError, BrokenPipeError, ConnectionResetError)  # errors that say that the daemon has closed its end of the pipe


def serve(worker: Worker, pipe: Pipe) -> None:
    """Answer calls until Stop. Raises EOFError, BrokenPipeError, ConnectionResetError if the daemon is gone."""
    try:
        _serve(worker, pipe)
    except ConfigError as error:
        pipe.send(0, Failed(str(error), worker.during, refused=True))
    except Exception as error:
        with suppress(*GONE):  # the daemon, which may be why
            pipe.send(0, Failed(describe(error), worker.during, place(error)))
        raise


def _serve(worker: Worker, pipe: Pipe) -> None:
    later: dict[type[Request], int] = {}  # ids of the calls that `step` will answer
    requests: Pipe | BackgroundAnswers = pipe
    request: Request | None = None
    while not isinstance(request, Stop):
        _work(worker, pipe, requests, later)
        call_id, request = requests.receive()
        if isinstance(request, Open):
            platform.lower_priority(request.nice)
        reply = worker.handle(request)
        if isinstance(reply, Opened) and worker.long_steps:
            requests = _background(worker, pipe)
        if reply is None:
            later[type(request)] = call_id
        else:
            pipe.send(call_id, reply)


def _work(worker: Worker, pipe: Pipe, requests: Pipe | BackgroundAnswers, later: Mapping[type[Request], int]) -> None:
    """Do slices of work, or wait for some, until there is a call."""
    while not requests.ready():
        if not worker.busy:
            pipe.wait(worker.sources, worker.due_s)
        elif reply := worker.step():
            pipe.send(later[ANSWERED.get(type(reply), Evaluate)], reply)


def _background(worker: Worker, pipe: Pipe) -> BackgroundAnswers:
    """Start a second thread for calls that come while a gradient is computed."""
    from starling.node.engine.background_answers import BackgroundAnswers  # noqa: PLC0415 — imports torch, which an opened engine has

    background = BackgroundAnswers(worker, pipe)
    worker.opened.window.around = background.around_gradient
    return background


def main() -> None:
    """Run the engine's process."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a creator's standard output carries the invite alone
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from starling.node.engine.worker import Worker  # noqa: PLC0415 — torch takes a second, in which a Ctrl-C must not end us

    with socket.socket(fileno=int(sys.argv[1])) as sock, suppress(*GONE):  # ends when the daemon is gone
        serve(Worker(work=time.thread_time), Pipe(sock))
    sys.stderr.flush()
    os._exit(0)  # everything is saved, and a regular exit of torch takes half a second


if __name__ == "__main__":
    main()
