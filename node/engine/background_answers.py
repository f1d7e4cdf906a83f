"""Answer calls of exchanges in a second thread while a gradient is computed.

A local step of a large model takes long, and most of it only reads the model. A call that came meanwhile, and that only reads it too, is
answered at once, as if it had come before the step; any other waits for the step's end, and all that came after it with it. Outside of
gradients only the first thread, which computes them, reads calls and answers them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from starling.node.rpc.pipe import Pipe

if TYPE_CHECKING:
    from starling.node.engine.worker import Worker
    from starling.node.rpc.calls import Request


class BackgroundAnswers:
    """The second thread of `worker`, which reads calls from `pipe` within `around_gradient` alone, and computes on one core.

    The first thread asks for calls here, with the methods of `pipe`.
    """

    def __init__(self, worker: Worker, pipe: Pipe) -> None:
        self._worker, self._pipe = worker, pipe
        self._turn = threading.Condition()  # locked while a call is read and answered in this thread
        self._open = False
        self._left: tuple[int, Request] | None = None  # a call that the second thread read and the first must answer
        self._failure: Exception | None = None
        threads = torch.get_num_threads()
        begun = threading.Event()
        threading.Thread(target=self._serve, args=(begun,), daemon=True).start()
        begun.wait()
        torch.set_num_threads(threads)

    @contextmanager
    def around_gradient(self) -> Iterator[None]:
        """Answer calls in the second thread while a gradient is computed. The end waits for the call being answered; raises what that
        raised.
        """
        with self._turn:
            self._open = True
            self._turn.notify()
        try:
            yield
        finally:
            self._open = False  # first of all: no other call begins
            with self._turn:
                pass
        if self._failure is not None:
            raise self._failure

    def ready(self) -> bool:
        """Return whether `receive` would return at once."""
        return self._left is not None or self._pipe.ready()

    def receive(self) -> tuple[int, Request]:
        """Wait for the next call that is not answered. Raises EOFError as `Pipe.receive`."""
        left, self._left = self._left, None
        return left or self._pipe.receive()

    def _serve(self, begun: threading.Event) -> None:
        torch.set_num_threads(1)  # applies to this thread alone
        begun.set()
        try:
            while True:
                with self._turn:
                    self._turn.wait_for(lambda: self._open and self._left is None)
                self._pipe.wait()
                with self._turn:
                    if self._open and self._left is None and self._pipe.ready():  # otherwise the first thread has read it
                        self._answer()
        except Exception as error:  # noqa: BLE001 — raised again by the first thread, which ends the engine
            self._failure = error

    def _answer(self) -> None:
        call_id, request = self._pipe.receive()
        reply = self._worker.handle_in_background(request)
        if reply is None:
            self._left = call_id, request
        else:
            self._pipe.send(call_id, reply)
