"""Interfaces between the daemon's services: an engine to call, and a reporter for events and peers' faults."""

from typing import TYPE_CHECKING, Literal, Protocol

import trio

from starling.node.rpc.calls import Reply, Request

if TYPE_CHECKING:  # stubs for an older trio, which py-libp2p installs, know the type by this name only
    from trio_typing import TaskStatus as _TaskStatus

    TaskStatus = _TaskStatus[None]
else:
    TaskStatus = trio.TaskStatus

Level = Literal["info", "warning", "error"]


class EngineHandle(Protocol):
    """The engine, wherever it runs: a child process behind a pipe, or inline under virtual time."""

    async def call(self, request: Request) -> Reply:
        """Send one call and wait for its reply.

        Calls are answered in order, except that others may pass Train, Evaluate and Stop while these run. The caller sets the deadline; a
        cancelled call's reply is discarded.

        Raises EngineError: the engine died or does not answer. Its owner restarts it.
        """
        ...


class Reporter(Protocol):
    """Takes events and peers' faults: for the log, the status and the peer policy."""

    def event(self, name: str, text: str, *, level: Level = "info", **fields: object) -> None:
        """Add an event: `name` in snake_case, `text` one line for a person, `fields` for the log."""
        ...

    def fault(self, peer: str, reason: str) -> None:
        """A peer broke the protocol: count it and penalise. `reason` in snake_case."""
        ...
