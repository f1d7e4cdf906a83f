"""Observes an edge: every event with the states before and after it and the resulting engine calls."""

from typing import Any

from starling.gossip.exchange.commands import Ended, SendMessage
from starling.gossip.exchange.edge import Edge
from starling.gossip.wire.schema import Request, Solicit

NO_CALLS = (SendMessage, Request, Solicit, Ended)


class ObservedEdge(Edge):
    """An edge that adds to `rows` (role, state, event, next state, engine calls) for every change of state and every call."""

    def __init__(self, me: str, peer: str, inc: int, *, rows: set[tuple]) -> None:
        super().__init__(me, peer, inc)
        self.rows = rows

    def receive(self, message: Any) -> list:
        agrees = self.state == "greeting" and message.inc == self.inc
        larger = "larger incarnation" if message.inc > self.inc else type(message).__name__
        return self._record(self.state, "same incarnation" if agrees else larger, super().receive(message))

    def _record(self, before: str, event: str, commands: list) -> list:
        calls = tuple(type(command).__name__ for command in commands if not isinstance(command, NO_CALLS))
        if calls or self.state != before:
            self.rows.add(("initiator" if self.initiator else "responder", before, event, self.state, calls))
        return commands


def _recorded(name: str) -> Any:
    def method(self: ObservedEdge, *arguments: Any, **named: Any) -> list:
        return self._record(self.state, name, getattr(Edge, name)(self, *arguments, **named))

    return method


for _name in ("begin", "accept", "refuse", "abort", "close", "reset", "offered", "answered", "applied", "failed"):
    setattr(ObservedEdge, _name, _recorded(_name))
