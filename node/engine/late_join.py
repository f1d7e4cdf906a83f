"""Serve this node's model to late joiners, and combine the models that it fetched when it joined late itself.

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median_low

from torch import Tensor

from starling.gossip.errors import LocalProtocolError, RemoteProtocolError
from starling.gossip.mix.past_rounds import GIVEN
from starling.node.engine import tensor_file
from starling.node.engine.exchange.api import Handlers
from starling.node.engine.local.trainer import Trainer
from starling.node.engine.rounds import Rounds
from starling.node.engine.snapshot import Snapshot
from starling.node.engine.vectors import Outgoing
from starling.node.rpc import calls
from starling.robust import model_agreement

_MODEL, _X = "model", "x"
MAX_CANDIDATES = 3  # models of peers stored at a time
KEPT_S = 120.0  # seconds after which an unread snapshot is deleted; a late joiner on a slow line reads one chunk in a quarter of that


class Offered:
    """Snapshots at a peer's request, read chunk by chunk from files in `folder`; None: from memory. There is one of the model at a time,
    and the newest of outer parameters of earlier rounds.

    `schema`: digest of the parameters' names and shapes.
    """

    def __init__(
        self, trainer: Trainer, rounds: Rounds, outgoing: Outgoing, schema: bytes, folder: Path | None, clock: Callable[[], float]
    ) -> None:
        self._trainer, self._rounds, self._outgoing = trainer, rounds, outgoing
        self._schema, self._folder, self._clock = schema, folder, clock
        self._held: dict[bytes, Snapshot] = {}  # by digest of the outer parameters, b"" of the model
        self._read_at = clock()

    def handlers(self) -> Handlers:
        """Return the handlers of Snapshot and ReadChunk."""
        return {calls.Snapshot: self.snapshot, calls.ReadChunk: self.read}

    def snapshot(self, call: calls.Snapshot) -> calls.SnapshotInfo | calls.Refused:
        """Take a snapshot of the model, which replaces the previous one, or of outer parameters, unless there is one of them."""
        if not call.outer:
            self._let_go(b"")  # deleted first, so that there are never two
        if call.outer not in self._held:
            given = self._model() if not call.outer else self._outer(call.outer)
            if given is None:
                return calls.Refused("state", "these outer parameters are not stored here")
            while len(self._held) > GIVEN:
                self._let_go(next(key for key in self._held if key))
            number = 0 if call.outer else self._rounds.round  # all who have the same outer parameters offer the same bytes
            facts: dict[str, str | int] = {"kind": _MODEL, "round": number, "schema": self._schema.hex()}
            try:
                self._held[call.outer] = Snapshot(self._folder, given, facts)
            except OSError as error:
                return calls.Refused("disk", f"no model for late joiners: {error.strerror or error}")
        self._read_at, held = self._clock(), self._held[call.outer]
        return calls.SnapshotInfo(held.number, held.size, held.root, self._rounds.round, self._schema, held.digests)

    def read(self, call: calls.ReadChunk) -> calls.ChunkRead:
        """Return bytes of a snapshot."""
        self._read_at = self._clock()
        held = next((it for it in self._held.values() if it.number == call.snapshot), None)
        return calls.ChunkRead(b"" if held is None else held.read(call.offset, call.length))

    def release_idle(self) -> None:
        """Delete the snapshots if none is read any more."""
        if self._clock() - self._read_at > KEPT_S:
            for key in (*self._held,):
                self._let_go(key)

    def _model(self) -> dict[str, Tensor]:
        outgoing, side_state = self._outgoing, self._trainer.side_state()
        given = {_X: outgoing.now(self._trainer.replica.offered)}
        return given | {name: outgoing.now(each.reshape(-1)).view(each.shape) for name, each in side_state.items()}

    def _outer(self, digest: bytes) -> dict[str, Tensor] | None:
        outer = self._trainer.replica.given.get(digest)
        return None if outer is None else {_X: outer}

    def _let_go(self, key: bytes) -> None:
        if key in self._held:
            self._held.pop(key).close()


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

    def agree(self, _call: calls.Agree) -> calls.Agreed:
        """Install the model that the stored ones agree on; every edge is reset. Raises LocalProtocolError if none is stored."""
        if 0 < self._rounds.granted < math.inf:
            raise LocalProtocolError("local steps of the round are left to do")
        if not self._candidates:
            raise LocalProtocolError("no model is stored")
        peers = sorted(self._candidates)
        rounds, held = zip(*(self._candidates[peer] for peer in peers), strict=True)
        self._candidates = {}
        agreement = self._compared(held, rounds)
        if agreement.state is None:
            return calls.Agreed(0, (), ())
        at = median_low(rounds[i] for i in agreement.cluster)
        self._trainer.install(agreement.state, at)
        self._trainer.take_side_state([held[i] for i in agreement.cluster])
        self._forget()
        self._rounds.begin(at)
        names = (tuple(peers[i] for i in which) for which in (agreement.cluster, agreement.outside))
        return calls.Agreed(at, *names)

    def _compared(self, held: Sequence[Mapping[str, Tensor]], rounds: Sequence[int]) -> model_agreement.Agreement:
        """Return how far models agree, with only the part in memory that is being read."""
        models = [tensors[_X] for tensors in held]
        replica = self._trainer.replica
        origin = replica.scope.part(replica.beginning()).to(models[0].device)

        def release() -> None:
            for tensors in held:
                tensor_file.release(tensors)

        return model_agreement.agree(models, origin, rounds, release)
