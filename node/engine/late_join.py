"""Serve this node's model to late joiners, and combine the models that it fetched when it joined late itself.

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.node.engine import tensor_file
from starling.node.engine.exchange.api import Handlers
from starling.node.engine.local.trainer import Trainer
from starling.node.engine.rounds import Rounds
from starling.node.engine.snapshot import Shelf, Shelves
from starling.node.engine.vectors import Outgoing
from starling.node.rpc import calls
from starling.robust import model_agreement

_MODEL, _X = "model", "x"
MAX_CANDIDATES = 3  # models of peers stored at a time


class Offered:
    """Takes snapshots of the model at a peer's request, one at a time, and of outer parameters of earlier rounds, and reads them.

    `schema`: digest of the parameters' names and shapes.
    """

    def __init__(self, trainer: Trainer, rounds: Rounds, outgoing: Outgoing, schema: bytes, shelves: Shelves) -> None:
        self._trainer, self._rounds, self._outgoing, self._schema, self._shelves = trainer, rounds, outgoing, schema, shelves

    def handlers(self) -> Handlers:
        """Return the handlers of Snapshot, SnapshotOuter and ReadChunk."""
        return {calls.Snapshot: self.snapshot, calls.SnapshotOuter: self.snapshot_outer, calls.ReadChunk: self.read}

    def snapshot(self, _call: calls.Snapshot) -> calls.SnapshotInfo | calls.Refused:
        """Take a snapshot of the model, which replaces the previous one."""
        self._shelves.models.delete(_MODEL)  # deleted first, so that there are never two
        outgoing, side_state = self._outgoing, self._trainer.side_state()
        given = {_X: outgoing.now(self._trainer.replica.offered)}
        given |= {name: outgoing.now(each.reshape(-1)).view(each.shape) for name, each in side_state.items()}
        return self._put(self._shelves.models, _MODEL, given, self._rounds.round)

    def snapshot_outer(self, call: calls.SnapshotOuter) -> calls.SnapshotInfo | calls.Refused:
        """Take a snapshot of outer parameters; all who have the same give the same bytes. Raises LocalProtocolError: there are none."""
        outer = self._trainer.replica.given.get(call.outer)
        if outer is None:
            raise LocalProtocolError("these outer parameters are not stored here")
        return self._put(self._shelves.outer, call.outer.hex(), {_X: outer}, 0)

    def read(self, call: calls.ReadChunk) -> calls.ChunkRead:
        """Return bytes of a snapshot."""
        return calls.ChunkRead(self._shelves.read(call.snapshot, call.offset, call.length))

    def _put(self, shelf: Shelf, name: str, given: Mapping[str, Tensor], round: int) -> calls.SnapshotInfo | calls.Refused:
        facts: dict[str, str | int] = {"kind": _MODEL, "round": round, "schema": self._schema.hex()}
        try:
            held = shelf.put(name, given, facts)
        except OSError as error:
            return calls.Refused("disk", f"no model for late joiners: {error.strerror or error}")
        return calls.SnapshotInfo(held.number, held.size, held.root, round, self._schema, held.digests)


@contextmanager
def _fault_of(peer: str, reason: str) -> Iterator[None]:
    """Raise a ValueError in it as a RemoteProtocolError of a peer."""
    try:
        yield
    except ValueError as error:
        raise RemoteProtocolError(peer, reason) from error


class Fetched:
    """Stores peers' models until enough of them agree."""

    def __init__(self, trainer: Trainer, rounds: Rounds, schema: bytes, forget: Callable[[], None]) -> None:
        """`schema` as of `Offered`; `forget` voids every edge."""
        self._trainer, self._rounds, self._schema, self._forget = trainer, rounds, schema, forget
        self._candidates: dict[str, tuple[int, Mapping[str, Tensor]]] = {}  # peer -> (round, x (d,))
        self._attempt = 0

    def handlers(self) -> Handlers:
        """Return the handlers of Consider and Agree."""
        return {calls.Consider: self.consider, calls.Agree: self.agree}

    def consider(self, call: calls.Consider) -> calls.Done:
        """Store a fetched model until Agree. Raises RemoteProtocolError: it does not fit."""
        try:
            with _fault_of(call.peer, "state_damaged"):
                tensors, facts = tensor_file.load(Path(call.file)) if call.file else tensor_file.unpack(call.state)
        except OSError as error:
            raise LocalProtocolError(f"a model that was fetched cannot be read: {error.strerror or error}") from error
        if facts.get("kind") != _MODEL or facts.get("schema") != self._schema.hex() or _X not in tensors:
            raise RemoteProtocolError(call.peer, "state_of_another_model")
        replica = self._trainer.replica
        with _fault_of(call.peer, "state_unusable"):
            replica.check(replica.scope.whole(tensors[_X], replica.x))
            self._trainer.check_side_state(dict(tensors))
        tensor_file.release(tensors)
        if call.turn != self._attempt:
            self._candidates, self._attempt = {}, call.turn
        if len(self._candidates) >= MAX_CANDIDATES and call.peer not in self._candidates:
            raise LocalProtocolError(f"{MAX_CANDIDATES} models are stored already")
        self._candidates[call.peer] = (call.round, tensors)
        return calls.Done()

    def agree(self, call: calls.Agree) -> calls.Agreed:
        """Install the model that the stored ones agree on; every edge is reset. Raises LocalProtocolError if none is stored."""
        if 0 < self._rounds.granted < math.inf:
            raise LocalProtocolError("local steps of the round are left to do")
        if not self._candidates:
            raise LocalProtocolError("no model is stored")
        peers = sorted(self._candidates)
        rounds, held = zip(*(self._candidates[peer] for peer in peers), strict=True)
        self._candidates = {}
        agreement = self._compared(held, rounds, against_own=call.against_own)
        if agreement.state is None:
            return calls.Agreed(0, (), ())
        at = agreement.round(rounds)
        self._trainer.install(agreement.state, at)
        self._trainer.take_side_state([held[i] for i in agreement.cluster])
        self._forget()
        self._rounds.begin(at)
        names = (tuple(peers[i] for i in which) for which in (agreement.cluster, agreement.outside))
        return calls.Agreed(at, *names)

    def _compared(self, held: Sequence[Mapping[str, Tensor]], rounds: Sequence[int], *, against_own: bool) -> model_agreement.Agreement:
        """Return how far models agree, with only the part in memory that is being read."""
        models = [tensors[_X] for tensors in held]
        replica = self._trainer.replica
        origin = replica.scope.part(replica.beginning()).to(models[0].device)

        def release() -> None:
            for tensors in held:
                tensor_file.release(tensors)

        if against_own and not model_agreement.are_nearer(models, replica.offered.to(origin.device), release):
            return model_agreement.Agreement(None, (), ())
        return model_agreement.agree(models, origin, rounds, release)
