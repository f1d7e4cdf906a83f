"""The script's end of the socket to its node's engine (`starling.node.rpc.script`)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.vector import Layout
from starling.node import platform
from starling.node.rpc import script as messages
from starling.node.rpc.script import SOCKET_NAME, Closed, Hello, Welcome
from starling.node.rpc.shared_vectors import SharedVectors
from starling.node.script.parts import Life
from starling.node.status.control import socket_address

POLL_S = 0.05
LONG_S = 3.0  # seconds of waiting after which the owner is told
UP_S = 600.0  # seconds for a node until its engine is up: it may have to fetch the initial model


class Client:
    """A connection to an engine.

    Attributes:
        welcome: what the engine said.
        vectors: the memory shared with it.
    """

    def __init__(self, folder: Path, hello: Hello, layout: Layout, life: Life, said: Callable[[str], None]) -> None:
        """Wait for the engine of the node in `folder`.

        `said` is given a line if something takes long. Raises ConfigError: the engine refuses the script; GossipError: the node has ended,
        or its engine is not there after UP_S.
        """
        self._said, self._doing = said, life.doing
        self._socket = _connected(folder, life, said)
        try:
            self.welcome, self.vectors = self._welcomed(hello, layout)
        except Closed as error:
            self.hang_up()
            raise GossipError(f"the engine of the node in {folder} ended; look at {folder}/output.log") from error
        except BaseException:
            self.hang_up()
            raise

    def _welcomed(self, hello: Hello, layout: Layout) -> tuple[Welcome, SharedVectors]:
        with suppress(Closed):  # a refusal may have arrived
            messages.send(self._socket, hello)
        answer, file = messages.receive_from_engine(self._socket)
        if isinstance(answer, messages.Refusal):
            raise ConfigError(answer.reason)
        if not isinstance(answer, Welcome) or file is None:
            raise Closed
        forms = {"memories": answer.memories, "corrects": answer.corrects}
        try:
            return answer, SharedVectors(file, layout.dim, layout.dtype, **forms)
        finally:
            os.close(file)

    def send(self, message: messages.FromScript) -> None:
        """Send a message to the engine. Raises Closed."""
        messages.send(self._socket, message)

    @property
    def ready(self) -> bool:
        """Tell if `receive` would not wait."""
        return platform.readable(self._socket)

    def receive(self) -> messages.Grant | messages.Measure:
        """Wait for the engine's next message, and report what the node waits for if that takes long. Raises Closed."""
        told = ""
        while not platform.readable(self._socket, timeout_s=LONG_S):  # an interrupt here loses nothing
            if (doing := self._doing()) and doing != told:
                told = doing
                self._said(doing)
        message, _ = messages.receive_from_engine(self._socket)
        if not isinstance(message, messages.Grant | messages.Measure):
            raise Closed
        return message

    def hang_up(self) -> None:
        """Close the socket without a farewell."""
        self._socket.close()

    def close(self) -> None:
        """Send a farewell, if the engine is connected, and disconnect."""
        try:
            self.send(messages.Bye())
        except Closed:
            pass
        finally:
            self._socket.close()


def _connected(folder: Path, life: Life, said: Callable[[str], None]) -> socket.socket:
    began, told, due = time.monotonic(), "", 1.0
    while True:
        trial = platform.unix_socket()
        try:
            with socket_address(folder, SOCKET_NAME) as address:
                trial.connect(address)
        except OSError:
            trial.close()
        else:
            return trial
        life.check()
        waited = time.monotonic() - began
        if waited > UP_S:
            raise GossipError(f"the node in {folder} is not ready after {UP_S:.0f} s; look with `starling status --dir {folder}`")
        if waited > due:
            due = waited + LONG_S
            doing = life.doing() or f"waiting for the node in {folder}; look with `starling status --dir {folder}`"
            if doing != told:
                told = doing
                said(doing)
        time.sleep(POLL_S)
