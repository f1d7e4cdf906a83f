"""Replace this node's outer parameters by those that members choose where theirs differ (`starling.gossip.mix.common_outer`).

Those of the round that messages of the last one told are replaced, and the sums of the rounds since are made again. Local steps and what
was not sent do not depend on it.

Shapes: d parameters.
"""

from collections.abc import Mapping
from pathlib import Path

from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.mix.broadcast_codec import anchor_digest
from starling.gossip.mix.common_outer import Choice, parted
from starling.gossip.mix.past_rounds import PastRounds
from starling.gossip.replica import Replica
from starling.node.engine import tensor_file
from starling.node.engine.exchange.api import Handlers
from starling.node.rpc import calls

OUTER = "x"
"""Name of the tensor in what is given to others."""


class OuterRepair:
    """Stores members' outer parameters of one round until they are combined."""

    def __init__(self, replica: Replica, past: PastRounds) -> None:
        self._replica, self._past, self._choice = replica, past, Choice()

    def handlers(self) -> Handlers:
        """Return the handlers of ConsiderOuter and ReplaceOuter."""
        return {calls.ConsiderOuter: self.consider, calls.ReplaceOuter: self.replace}

    def compare(self, round: int, reported: Mapping[str, bytes], members: int) -> tuple[bool, calls.Divergence | None]:
        """Return whether members' outer parameters differ in a round by the digests that peers report, and what this node needs of them."""
        own = self._past.closed(round)
        needed = self._choice.compare(own, self._replica.given.get(own), reported, members)
        differ = any(parted(own, digest) for digest in reported.values())
        sources = tuple(sorted(needed.sources.items()))
        return differ, calls.Divergence(sources, needed.voices - needed.own) if sources else None

    def consider(self, call: calls.ConsiderOuter) -> calls.Done:
        """Store fetched outer parameters. Raises RemoteProtocolError: they are not what was asked for."""
        if not self._choice.needs(call.digest):
            raise LocalProtocolError("these outer parameters are not wanted")
        try:
            tensors, _ = tensor_file.load(Path(call.file)) if call.file else tensor_file.unpack(call.state)
            outer = tensors[OUTER]
            self._replica.check(outer)
        except OSError as error:
            raise LocalProtocolError(f"outer parameters that were fetched cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError) as error:
            raise RemoteProtocolError(call.peer, "state_damaged") from error
        if anchor_digest(outer) != call.digest:
            raise RemoteProtocolError(call.peer, "state_of_another_model")
        self._choice.store(call.digest, outer)
        return calls.Done()

    def replace(self, _call: calls.ReplaceOuter) -> calls.Done:
        """Replace ours. Raises LocalProtocolError: too few were stored, or ours are not known any more."""
        self._past.replace(self._choice.choose())
        return calls.Done()
