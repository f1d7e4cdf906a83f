"""The engine's half of pairwise transactions of any kind: timing and blame.

One transaction at a time per peer, in the order that the daemon's edges ensure. The model is not touched: vectors come in, and
effects go out, so a refused payload changes nothing.

Shapes: D numbers of the shared vector.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from starling.gossip.compress.budget import Effort
from starling.gossip.edge_memory import Committed
from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.replica import Replica
from starling.node.engine.exchange.api import Frozen, Handlers, Mixed, Site
from starling.node.engine.threads import one_thread
from starling.node.rpc import calls


class Transactions(Protocol):
    """The steps of a transaction for one kind of exchange, one method per call."""

    def offer(self, call: calls.Offer) -> calls.Offered:
        """Initiator: make the request about the node's vector. Raises LocalProtocolError: its numbers cannot be sent, or it has none."""

    def answer(self, call: calls.Answer) -> calls.Answered:
        """Responder: make the response about the node's vector, whose effect is stored until it is committed or dropped.

        Raises RemoteProtocolError: the payload, the weight or the gain is not what an honest initiator could send; LocalProtocolError: the
        node's numbers cannot be sent, or it has none. Nothing changed then.
        """

    def apply(self, call: calls.Apply) -> calls.Done:
        """Initiator: take the effect of the response; delete the offer.

        Raises RemoteProtocolError: the payload is not what an honest responder could send; nothing changed; LocalProtocolError: there is no
        such offer.
        """

    def commit(self, call: calls.Commit) -> calls.Done:
        """Responder: take the effect of the answer, which is no longer pending. Raises LocalProtocolError if there is none."""

    def drop(self, call: calls.Drop) -> calls.Done:
        """Delete a transaction, if there is one."""

    def forget(self, peer: str) -> None:
        """Delete the state of an edge, which is closed or void."""

    def forget_all(self) -> None:
        """Delete the state of all edges."""


class Pairwise:
    """Exchanges between two ends, in transactions of one kind. Satisfies `Exchange`."""

    def __init__(self, replica: Replica, site: Site, effort: Effort, transactions: Transactions) -> None:
        self.replica, self.effort = replica, effort
        self._work, self._transactions = site.machine.work, transactions

    def handlers(self) -> Handlers:
        """Return handlers of a transaction's calls, all but Drop on one thread and timed."""
        of = self._transactions
        timed: dict[type[calls.Call], Callable[[Any], Any]] = {
            calls.Offer: of.offer,
            calls.Answer: of.answer,
            calls.Apply: of.apply,
            calls.Commit: of.commit,
        }
        return {kind: self._timed(answer) for kind, answer in timed.items()} | {calls.Drop: of.drop}

    def mix(self, frozen: Frozen, committed: Sequence[Committed], requested: Sequence[str], *, own: bool) -> Mixed:
        """Add effects in order of peer id, those of one peer in the order of their transactions."""
        self.replica.combine(sorted(committed, key=lambda done: done.peer), frozen.phase)
        return Mixed()

    def forget(self, peer: str) -> None:
        """Delete the state of an edge."""
        self._transactions.forget(peer)

    def forget_all(self) -> None:
        """Delete the state of all edges."""
        self._transactions.forget_all()

    def _timed(self, answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        alone = one_thread()(answer)

        def timed(call: Any) -> Any:
            began = self._work()
            reply = alone(call)
            self.effort.exchanged(self._work() - began)
            return reply

        return timed


def check_weight(theta: float) -> None:
    """Raise ValueError unless a weight can be a link's; the daemon checks the exact one. base_k has links above a half."""
    if not 0.0 < theta < 1.0:
        raise ValueError("theta_out_of_bounds")


@contextmanager
def fault_of(peer: str) -> Iterator[None]:
    """Turn a ValueError in this block into a RemoteProtocolError of a peer."""
    try:
        yield
    except ValueError as error:
        raise RemoteProtocolError(peer, str(error)) from error


@contextmanager
def fault_of_ours() -> Iterator[None]:
    """Turn a ValueError in this block into a LocalProtocolError: our own numbers are not finite, or too large."""
    try:
        yield
    except ValueError as error:
        raise LocalProtocolError(f"our own numbers cannot be sent: {error}") from error
