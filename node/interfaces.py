"""What the daemon's services ask of each other: an engine to call and a reporter to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import trio

from starling.node.rpc.calls import Reply, Request

if TYPE_CHECKING:  # stubs for an older trio, which py-libp2p installs, know the type by this name only
    from trio_typing import TaskStatus as _TaskStatus

    TaskStatus = _TaskStatus[None]
else:
    TaskStatus = trio.TaskStatus


class EngineHandle(Protocol):
    """The engine, wherever it runs: a child process behind a pipe, or inline under virtual time."""

    async def call(self, request: Request) -> Reply:
        """One call, one reply. Calls are answered in order, except that Train, Evaluate and Stop let others pass while they run.

        The caller sets the deadline; a cancelled call's reply is discarded.

        Raises:
            EngineError: the engine died or does not answer. Whoever owns it restarts it.
        """
        ...


class Reporter(Protocol):
    """Where facts worth telling go: log, status events, reputation."""

    def event(
        self, name: str, text: str, *, level: Literal["info", "warning", "error"] = "info", **fields: object
    ) -> None:
        """One event: `name` in snake_case, `text` one line for a person, fields for the log."""
        ...

    def fault(self, peer: str, reason: str) -> None:
        """A peer broke the protocol: count it and penalise."""
        ...
