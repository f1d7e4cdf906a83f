"""Transactions under way at one node, by peer."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from starling.gossip.errors import LocalProtocolError
from starling.node.rpc import calls

T = TypeVar("T")
Of = calls.Offer | calls.Answer | calls.Apply | calls.Commit | calls.Drop


@dataclass(slots=True)
class Table(Generic[T]):
    """State of at most one transaction per peer.

    Args:
        what: was done to the peer, for the error if there is no such transaction.
    """

    what: str
    _held: dict[str, tuple[int, int, T]] = field(default_factory=dict)

    def put(self, call: Of, kept: T) -> None:
        """Begin a transaction, which replaces any other with this peer."""
        self._held[call.peer] = call.inc, call.seq, kept

    def get(self, call: Of) -> T:
        """Return the state of the call's transaction. Raises LocalProtocolError: there is none."""
        inc, seq, kept = self._held.get(call.peer, (-1, -1, None))
        if kept is None or (inc, seq) != (call.inc, call.seq):
            raise LocalProtocolError(f"nothing {self.what} {call.peer} in transaction {call.seq}")
        return kept

    def others(self, peer: str) -> list[tuple[str, T]]:
        """Return the states of transactions with all other peers, in order of peer id."""
        return [(other, kept) for other, (_, _, kept) in sorted(self._held.items(), key=_name) if other != peer]

    def drop(self, call: calls.Drop) -> None:
        """Delete the call's transaction, if there is one."""
        inc, seq, _ = self._held.get(call.peer, (-1, -1, None))
        if (inc, seq) == (call.inc, call.seq):
            del self._held[call.peer]

    def pop(self, peer: str, _default: None = None) -> None:
        """Delete any transaction with a peer."""
        self._held.pop(peer, None)

    def clear(self) -> None:
        """Delete all transactions."""
        self._held.clear()


def _name(held: tuple[str, object]) -> str:
    return held[0]
