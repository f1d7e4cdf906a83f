"""An opened engine: which call does what to the learner, and when.

steps   Train does a round's local steps and freezes the shared vector; exchanges read the frozen one and their effects gather until
        Mix adds them in order of peer id. An answer committed later than its round's Mix (its Ack was lost) is added at the next.
        Where vectors are pulled, Publish encodes the frozen one, VerifyUpdate keeps those of peers, and Mix combines them.
clock   Free lets training run; exchanges read the live vector and their effects are added at once, between two local steps.

Shapes: d parameters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from starling.gossip.api import Effect, Phase, Swapped
from starling.gossip.errors import ConfigError, LocalProtocolError
from starling.gossip.mix.catalogue import gathers, swaps
from starling.node.engine import tensor_file
from starling.node.engine.checkpoint import Checkpoint, Checkpoints, swarm_of
from starling.node.engine.consensus import ConsensusDistance
from starling.node.engine.devices import Gpu
from starling.node.engine.learner import Learner
from starling.node.engine.model_candidates import ModelCandidates
from starling.node.engine.pairwise_exchange import Exchanges
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.pull_exchange import Gathering
from starling.node.rpc import calls
from starling.node.status.figures import EngineFigures
from starling.node.tasks.evaluate import Progress, Result

_AVERAGED = 0.1  # weight of the newest in the mean number of local steps between exchanges
_MODEL = "model"


@dataclass(slots=True)
class _Tally:
    """Local steps since something began."""

    began: float
    steps: int = 0
    losses: float = 0.0
    counted: int = 0
    undone: int = 0

    def note(self, loss: float | None) -> None:
        self.steps += 1
        if loss is None:
            self.undone += 1
        elif not math.isnan(loss):
            self.losses += loss
            self.counted += 1

    @property
    def mean(self) -> float | None:
        if self.counted:
            return self.losses / self.counted
        return math.nan if self.steps else None


class Session:
    """What the engine is between Open and Stop.

    Args:
        opening: the first call.
        clock: seconds, for how long things took.
        csprng: random numbers that peers cannot predict.

    Raises:
        ConfigError: the manifest, the node's settings or the checkpoint cannot be used.
    """

    def __init__(self, opening: calls.Open, clock: Callable[[], float], csprng: Csprng) -> None:
        self._clock = clock
        self._csprng = csprng
        self._pace = opening.manifest.pace
        self.learner = learner = Learner(opening, csprng)
        self._sent_noise = _sent_noise(opening, swapped=swaps(learner.mixer.edge))
        self._distances = ConsensusDistance()
        self._gpu = Gpu(learner.device, clock)
        self.exchanges = Exchanges(
            opening.manifest, node=opening.node, origin=learner.origin, layout=learner.layout, mixer=learner.mixer,
            correction_lr=learner.correction_lr, remembered=lambda: learner.kept,
            distances=self._distances,
        )  # fmt: skip
        self.gathering = Gathering(
            self.exchanges.terms, node=opening.node, seed=opening.manifest.seed, origin=learner.origin
        )
        self._schema = learner.layout.digest
        self._checkpoints = None
        self._round = 0  # the one to do next
        resumed = False
        if opening.checkpoint:
            self._checkpoints = Checkpoints(
                Path(opening.checkpoint), swarm=swarm_of(opening.manifest), schema=self._schema.hex()
            )
            resumed = self._resume(self._checkpoints.load(), opening.checkpoint)
        self._tally = _Tally(clock())
        self._left = 0  # local steps of a granted round
        self._granted = calls.Train(0, 0)
        self._free = False
        self._frozen: Tensor | None = None
        self._gathered: list[Effect | Swapped] = []
        self._evaluation: Iterator[Progress | Result] | None = None
        self._evaluate_next = True
        self._mean_gap = self._pace.local_steps / 2.0  # mean local steps between any two exchanges of ours
        self._last_exchange = learner.local_steps
        self._held = (0, b"")
        self._candidates = ModelCandidates(learner.beginning)
        self.opened = calls.Opened(
            learner.layout.dim, self._schema, learner.task.metric, learner.task.higher_is_better, learner.device,
            learner.data.samples, resumed, self._round, EngineFigures(learner.local_steps, epsilon=learner.epsilon),
        )  # fmt: skip

    def _resume(self, checkpoint: Checkpoint | None, path: str) -> bool:
        if checkpoint is None:
            return False
        try:
            self.learner.restore(checkpoint.tensors, checkpoint.local_steps)
        except ValueError as error:
            raise ConfigError(f"checkpoint {path}: {error}; move the file away to start afresh") from error
        self._round = checkpoint.round
        return True

    # --- work, a slice at a time --------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """There is a slice to do."""
        return self._computing or self._evaluation is not None

    @property
    def _computing(self) -> bool:
        return self._free or self._left > 0

    def step(self) -> calls.Trained | calls.Evaluated | None:
        """One local step or one slice of an evaluation, in turn if both are wanted."""
        if self._evaluation is not None and (self._evaluate_next or not self._computing):
            self._evaluate_next = False
            return self._measure(self._evaluation)
        self._evaluate_next = True
        self._tally.note(self.learner.local_step(self._round))
        if self._free:
            self.learner.publish(self.learner.phase(self._round, 1.0))
            return None
        self._left -= 1
        return self._freeze() if self._left == 0 else None

    def _measure(self, evaluation: Iterator[Progress | Result]) -> calls.Evaluated | None:
        match next(evaluation):
            case Result(value, loss, samples):
                self._evaluation = None
                return calls.Evaluated(value, loss, samples)
            case Progress():
                return None

    def _freeze(self) -> calls.Trained:
        self.learner.publish(self._phase)
        self._frozen = self._as_sent(self.learner.shared())
        return self._trained()

    @property
    def _phase(self) -> Phase:
        """Of the round granted last, in steps pace."""
        granted = self._granted
        return replace(
            self.learner.phase(granted.round, float(granted.steps)),
            first=granted.first, last=granted.last, turn=granted.turn,
        )  # fmt: skip

    def _trained(self, distance: float | None = None) -> calls.Trained:
        tally, now = self._tally, self._clock()
        self._tally = _Tally(now)
        learner, (busy, taken) = self.learner, self._gpu.look()
        figures = EngineFigures(learner.local_steps, tally.mean, learner.epsilon, distance, busy, taken)
        return calls.Trained(self._round, figures, now - tally.began, tally.undone, learner.halted)

    def _as_sent(self, vector: Tensor) -> Tensor:
        """(D,) as it is sent, a noised copy. Both ends of an exchange use the noised one, so the sum of both vectors stays."""
        return self._csprng.noised(vector, self._sent_noise) if self._sent_noise else vector.clone()

    # --- calls: pace --------------------------------------------------------------------------------------

    def train(self, call: calls.Train) -> calls.Trained | None:
        """Start a round; its reply comes out of `step`."""
        if self._pace.kind != "steps" or self._computing:
            raise LocalProtocolError("a round is granted in steps pace, one at a time")
        self.thaw()
        self._round, self._granted = call.round, call
        self._tally = _Tally(self._clock())
        self._left = call.steps
        return None if call.steps > 0 else self._freeze()

    def free(self, call: calls.Free) -> calls.Trained:
        """Train without pause, or pause."""
        if self._pace.kind != "clock":
            raise LocalProtocolError("training runs free in clock pace")
        self._free, self._round = call.on, call.round
        self.learner.mark_good()
        return self._trained(self._distances.figure())

    def mix(self, call: calls.Mix) -> calls.Done:
        """Add what gathered, and thaw. What was committed after the last Mix (its Ack was lost) counts without another Train."""
        self._must_rest()
        if self._frozen is None and self._gathered:
            self.train(calls.Train(call.round, 0))
        held = self.thaw(call.asked)
        self._round = call.round + 1
        return calls.Done(held=held, distance=self._distances.figure())

    def thaw(self, asked: Sequence[str] = ()) -> tuple[str, ...] | None:
        """Combine what was committed or received since the last Mix. -> of peers in `asked`, those the rule excluded, if it says so"""
        if self._frozen is None:
            return None
        held, order = None, sorted(asked)
        self._frozen = None
        gathered, self._gathered = self._gathered, []
        if gathers(self.learner.mixer.edge):
            told, present = self.gathering.told(asked)
            self.gathering.forget_all()
            self._distances.record_vectors(order, told, present, self.learner.shared())
            held = self.learner.gather(order, told, present, self._phase)
        else:
            gathered.sort(key=lambda done: done.peer)  # stable: each peer's in order
            self.learner.absorb(gathered, self._phase)
        self.learner.mark_good()
        if held is None:
            return None
        return tuple(peer for peer, back in zip(order, held.tolist(), strict=True) if back)

    # --- calls: pulled exchanges --------------------------------------------------------------------------

    def publish(self, call: calls.Publish) -> calls.Published:
        """The frozen vector, encoded for all who pull it."""
        return self.publish_vector(call, self.readable())

    def publish_vector(self, call: calls.Publish, vector: Tensor) -> calls.Published:
        """The same for another vector (D,)."""
        return self.gathering.publish(call, vector)

    def verify_update(self, call: calls.VerifyUpdate) -> calls.Done:
        """A peer's vector. It counts at the Mix of this round, whichever round it is from."""
        if self._frozen is None:
            raise LocalProtocolError("what peers tell counts between the end of Train and Mix")
        self.gathering.verify(call)
        return calls.Done()

    # --- calls: exchanges ---------------------------------------------------------------------------------

    def offer(self, call: calls.Offer) -> calls.Offered:
        """Initiator's values."""
        return self.offer_vector(call, self.readable())

    def offer_vector(self, call: calls.Offer, vector: Tensor) -> calls.Offered:
        """The same of another vector (D,)."""
        return self.exchanges.offer(call, vector, local_steps=self._local_steps, exclusive=self._pace.kind == "clock")

    def answer(self, call: calls.Answer) -> calls.Answered:
        """Responder's difference."""
        return self.answer_vector(call, self.readable())

    def answer_vector(self, call: calls.Answer, vector: Tensor) -> calls.Answered:
        """The same of another vector (D,)."""
        return self.exchanges.answer(call, vector, exclusive=self._pace.kind == "clock")

    def apply(self, call: calls.Apply) -> calls.Done:
        """Initiator's commit."""
        return self.take(self.exchanges.apply(call))

    def commit(self, call: calls.Commit) -> calls.Done:
        """Responder's commit."""
        return self.take(self.exchanges.commit(call))

    def drop(self, call: calls.Drop) -> calls.Done:
        """Forget one transaction."""
        self.exchanges.drop(call)
        return calls.Done()

    def settle(self, call: calls.Settle) -> calls.Done:
        """The edge was closed in order."""
        self.exchanges.forget(call.peer)
        self._book_now(call.peer)
        self.learner.settle(call.peer)
        return calls.Done()

    def revoke(self, call: calls.Revoke) -> calls.Done:
        """The peer is gone. What it committed stays in the model; its flow and what was received from it since the last Mix are deleted."""
        self.gathering.forget(call.peer)
        self.exchanges.forget(call.peer)
        self._distances.forget(call.peer)
        self._book_now(call.peer)
        return calls.Done(leaned=self.learner.revoke(call.peer))

    @property
    def frozen(self) -> bool:
        """Exchanges read a frozen vector: steps pace, between the end of Train and Mix."""
        return self._frozen is not None

    @property
    def round(self) -> int:
        """The one to do next, or under way."""
        return self._round

    def readable(self) -> Tensor:
        """(D,) the vector that exchanges read now.

        Raises:
            LocalProtocolError: steps pace, and none is frozen.
        """
        if self._pace.kind == "clock":
            shared = self.learner.shared()
            return self._as_sent(shared) if self._sent_noise else shared
        if self._frozen is None:
            raise LocalProtocolError("there is no frozen vector between Mix and the end of the next Train")
        return self._frozen

    def take(self, done: Effect | Swapped) -> calls.Done:
        """Add what an exchange does to our vector: at the next Mix in steps pace, else at once."""
        if self._pace.kind == "steps":
            self._gathered.append(done)
        else:
            steps = self.learner.local_steps
            phase = self.learner.phase(self._round, float(steps - self._last_exchange))
            self._mean_gap += _AVERAGED * (phase.local_steps - self._mean_gap)
            self._last_exchange = steps
            self.learner.absorb([done], phase)
        clipped = self.exchanges.clipped(done)
        return calls.Done(clipped, clip=1.0 if isinstance(done, Effect) and not clipped else None)

    def _book_now(self, peer: str) -> None:
        """Before a peer's flow is settled or deleted, what has gathered must be in it, or it would grow anew at Mix."""
        self._gathered = [self.learner.flow_only(done) if done.peer == peer else done for done in self._gathered]

    @property
    def _local_steps(self) -> float:
        """K of the gain. In clock pace it is measured: local steps from one exchange that we initiate to the next.

        Of our exchanges we initiate about every second one; the other end initiates the rest. A gap that is longer than usual counts in
        full, as the models had that long to part; so the gain errs to the small side.
        """
        if self._pace.kind == "steps":
            return float(self._pace.local_steps)
        return max(1.0, 2.0 * self._mean_gap, float(self.learner.local_steps - self._last_exchange))

    # --- calls: looking and keeping -----------------------------------------------------------------------

    def evaluate(self) -> None:
        """Start an evaluation of the model as it is now; its reply comes out of `step`."""
        if self._evaluation is not None:
            raise LocalProtocolError("an evaluation is under way")
        self._evaluation = self.learner.evaluation()

    def save(self, call: calls.Save) -> calls.Done:
        """Write the checkpoint, and the model alone if asked.

        Raises:
            OSError: it could not be written.
        """
        learner = self.learner
        if self._checkpoints is not None:
            self._checkpoints.save(Checkpoint(self._round, learner.local_steps, learner.tensors()))
        if call.export:
            path = Path(call.export)
            facts: dict[str, str | int] = {"kind": "export", "round": self._round, "schema": self._schema.hex()}
            tensor_file.write(path, tensor_file.pack(learner.state_dict(), facts)).replace(path)
        return calls.Done()

    def close(self) -> calls.Done:
        """Write everything for the last time.

        Raises:
            OSError: it could not be written.
        """
        saved = self.save(calls.Save())
        if self.learner.private is not None:
            self.learner.private.accountant.write()
        return saved

    def snapshot(self) -> calls.Held:
        """Hold the model as it is; the one held before is let go."""
        facts: dict[str, str | int] = {"kind": _MODEL, "round": self._round, "schema": self._schema.hex()}
        data = tensor_file.pack({"x": self._as_sent(self.learner.x)}, facts)
        self._held = (self._held[0] + 1, data)
        return calls.Held(self._held[0], len(data), hashlib.sha256(data).digest(), self._round, self._schema)

    def read_chunk(self, call: calls.ReadChunk) -> calls.ChunkRead:
        """Bytes of the held snapshot."""
        held, data = self._held
        return calls.ChunkRead(data[call.offset : call.offset + call.length] if call.snapshot == held else b"")

    def consider(self, call: calls.Consider) -> calls.Done:
        """Hold a fetched model.

        Raises:
            ValueError: it is none of ours. The message is a snake_case reason.
        """
        self._candidates.add(call.peer, call.round, self._model_in(call.state), call.turn)
        return calls.Done()

    def agree(self) -> calls.Agreed:
        """Take over what the models held agree on; every edge starts anew.

        Raises:
            LocalProtocolError: none is held, or a round is under way.
        """
        self._must_rest()
        agreed, model = self._candidates.take()
        if model is not None:
            self._take_over(model, agreed.round)
        return agreed

    def _model_in(self, state: bytes) -> Tensor:
        """(d,) the model in a snapshot.

        Raises:
            ValueError: it is none of ours. The message is a snake_case reason.
        """
        try:
            tensors, facts = tensor_file.unpack(state)
        except ValueError as error:
            raise ValueError("state_damaged") from error
        if facts.get("kind") != _MODEL or facts.get("schema") != self._schema.hex() or tensors.keys() != {"x"}:
            raise ValueError("state_of_another_model")
        try:
            self.learner.check(tensors["x"])
        except ValueError as error:
            raise ValueError("state_unusable") from error
        return tensors["x"]

    def _must_rest(self) -> None:
        if self._left > 0:
            raise LocalProtocolError("local steps of the round are left to do")

    def _take_over(self, model: Tensor, round: int) -> None:
        self.learner.install(model, round)
        self.exchanges.forget_all()
        self.gathering.forget_all()
        self._distances.forget_all()
        self._frozen, self._gathered, self._round = None, [], round


def _sent_noise(opening: calls.Open, *, swapped: bool) -> float:
    """Standard deviation of the noise on vectors that are sent.

    Raises:
        ConfigError: the mixing algorithm sends increments, on which noise would add up.
    """
    if opening.privacy.exchange_noise and swapped:
        raise ConfigError(
            f"privacy.exchange_noise: must be 0 with mix.kind = {opening.manifest.mix.kind!r}, whose messages add up, "
            f"got {opening.privacy.exchange_noise:g}; pet, dsgd, gather and others take it"
        )
    return opening.privacy.exchange_noise
