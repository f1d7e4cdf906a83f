"""The engine's end of the socket to its owner's script: one script at a time.

Anyone who can open the socket is the owner, as for the control socket. The connection to a script that sends an invalid message is closed.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from starling.node import platform
from starling.node.rpc import script as messages
from starling.node.rpc.script import SOCKET_NAME, Closed, FromEngine, FromScript
from starling.node.status.control import socket_address

HEARD_S = 10.0  # seconds for the rest of a message that has begun


class Link:
    """Listens in a folder for scripts."""

    def __init__(self, folder: Path) -> None:
        """Listen. Raises OSError: no socket can be created."""
        self._folder = folder
        self._path = folder / SOCKET_NAME
        self._path.unlink(missing_ok=True)
        self._listening = platform.unix_socket()
        with socket_address(folder, SOCKET_NAME) as address:
            self._listening.bind(address)
        self._path.chmod(0o600)
        self._listening.listen(4)
        self._script: socket.socket | None = None
        self._process = 0  # process id of the script, which its first message states

    @property
    def is_up(self) -> bool:
        """Tell if a script is connected."""
        return self._script is not None

    @property
    def sources(self) -> tuple[int, ...]:
        """Return descriptors that are readable when `ready`."""
        sockets = (self._listening, self._script)
        return tuple(each.fileno() for each in sockets if each is not None)

    @property
    def ready(self) -> bool:
        """Tell if `receive` has something."""
        return platform.readable(*self.sources)

    def receive(self) -> FromScript | None:
        """Return a message of the script, while `ready`; None: it is handled here. Raises Closed: the script is gone."""
        script = self._script
        if script is not None and platform.readable(script):  # before another script is accepted: this may be its farewell
            try:
                said = messages.receive_from_script(script)
            except Closed:
                self.hang_up()
                raise
            if isinstance(said, messages.Hello):
                self._process = said.pid
            return said
        if platform.readable(self._listening):
            self._accept()
        return None

    def send(self, message: FromEngine, *files: int) -> None:
        """Send to the script, if one is connected. Raises Closed: it is gone."""
        if self._script is None:
            raise Closed
        try:
            messages.send(self._script, message, *files)
        except Closed:
            self.hang_up()
            raise

    def hang_up(self) -> None:
        """Close the connection to the script."""
        if self._script is not None:
            self._script.close()
        self._script = None

    def close(self) -> None:
        """Hang up and stop listening."""
        self.hang_up()
        self._listening.close()
        with suppress(OSError):
            os.unlink(self._path)  # noqa: PTH108 - the socket's name

    def _accept(self) -> None:
        arrived, _ = self._listening.accept()
        arrived.settimeout(HEARD_S)
        if self._script is None:
            self._script = arrived
            return
        with arrived, suppress(Closed):
            messages.send(
                arrived,
                messages.Refusal(f"{self._folder} is in use by process {self._process}; end that script, or name another directory"),
            )
