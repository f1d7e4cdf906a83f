"""An opened engine: what each call does to the learner, and when.

steps   Train does a round's local steps and freezes the shared vector; exchanges read the frozen one, and Mix adds their effects in
        order of peer id. An answer committed later than its round's Mix (its Ack was lost) is added at the next. Where rounds overlap,
        Train of the next runs while the vector is frozen, and Mix freezes anew after adding the effects.
        Where vectors are pulled or broadcast, Publish encodes the frozen one, VerifyUpdate keeps those of peers, and Mix combines them.
clock   Free lets training run; exchanges read the live vector, and their effects are added at once, between two local steps.

While a gradient is computed the model does not change: the driver may have calls answered then that only read it (`around_gradient`).

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low

import torch
from torch import Tensor

from starling.gossip.api import Phase, Swapped
from starling.gossip.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from starling.gossip.mix.catalogue import Kind, broadcasts, gathers, swaps, tracks
from starling.node.engine import stage as stages
from starling.node.engine import tensor_file
from starling.node.engine.best import NAME as BEST
from starling.node.engine.best import Best
from starling.node.engine.checkpoint import Checkpoint, Checkpoints, swarm_of
from starling.node.engine.consensus import ConsensusDistance
from starling.node.engine.devices import Gpu
from starling.node.engine.learner import Learner
from starling.node.engine.measured_model import MeasuredModel
from starling.node.engine.pairwise_exchange import Done, Exchanges
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.pull_exchange import PullExchange
from starling.node.engine.snapshot import Snapshot
from starling.node.engine.threads import Threads, one_thread
from starling.node.rpc import calls
from starling.node.status.snapshot import EngineFigures
from starling.node.tasks.evaluate import Result
from starling.robust import model_agreement

_AVERAGED = 0.1  # weight of the newest in the mean number of local steps between exchanges
_MODEL = "model"
MAX_CANDIDATES = 3  # models of peers held at a time
BESIDE_GRADIENT = calls.Offer | calls.Answer | calls.Apply | calls.Commit | calls.Drop | calls.ReadChunk
KEPT_S = 120.0  # a snapshot that nobody reads; a late joiner on a slow line reads one chunk in a quarter of that


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
    """The engine between Open and Stop. A call is answered by the method that has its tag as a name.

    Raises ConfigError: the manifest, the node's settings or the checkpoint cannot be used.
    """

    def __init__(self, opening: calls.Open, clock: Callable[[], float], csprng: Csprng) -> None:
        self._clock = clock
        self._csprng = csprng
        self._pace = opening.manifest.pace
        self._node = opening.node
        self._most_threads = torch.get_num_threads()
        torch.set_num_threads(opening.threads or self._most_threads)
        self.learner = learner = Learner(opening, csprng)
        self._sent_noise = _sent_noise(opening, learner.mixer.edge)
        self._distances = ConsensusDistance()
        self._gpu = Gpu(learner.device, clock)
        # compiled code is of one number of threads
        self._fixed_threads = learner.device != "cpu" or opening.numerics.compile
        self._threads = Threads(clock, fixed=opening.threads > 0 or self._fixed_threads)
        self.exchanges = Exchanges(opening.manifest, opening.node, learner, self._distances)
        self.pulls = PullExchange(
            self.exchanges.codec, node=opening.node, seed=opening.manifest.seed, form=learner.form,
            broadcast=self.exchanges.broadcast if broadcasts(learner.mixer.edge) else None,
        )  # fmt: skip
        self._schema = learner.layout.digest
        self._stage = learner.staged(Path(opening.checkpoint) if opening.checkpoint else None)
        self._checkpoints = None
        self._round = 0  # the one to do next
        resumed, swarm, file = False, swarm_of(opening.manifest), Path(opening.checkpoint)
        if opening.checkpoint:
            self._checkpoints = Checkpoints(file, swarm=swarm, schema=self._schema.hex())
            resumed = self._resume(self._checkpoints.load(), opening.checkpoint)
            learner.spare = self._spare
        self._best = Best(
            file.with_name(BEST) if opening.checkpoint else None, swarm=swarm, schema=self._schema.hex(),
            higher_is_better=learner.task.higher_is_better, large=learner.large,
        )  # fmt: skip
        self._tally = _Tally(clock())
        self._left = 0  # local steps of the granted round
        self._granted = calls.Train(0, 0)
        self._free = False
        self._frozen: Tensor | None = None
        self._frozen_in = learner.phase(0, 0.0)  # phase of the frozen vector
        self._unfrozen = False  # local steps are done ahead of the Mix that freezes them
        self._committed: list[Done] = []  # since the last Mix, in steps pace
        self.around_gradient: Callable[[], AbstractContextManager[None]] = nullcontext  # of the driver
        learner.around_gradient = self._around_gradient
        self._in_gradient = False
        self._taken: list[Done] = []  # in clock pace, in a gradient: added at the end of the local step
        self._evaluation: Iterator[Result | None] | None = None
        self._evaluated: tuple[
            int, MeasuredModel, bool
        ]  # rounds done, model, and Evaluate's `keep` of the evaluation under way
        self._evaluate_next = True
        self._mean_gap = self._pace.local_steps / 2.0  # mean local steps between any two exchanges of ours
        self._last_exchange = learner.local_steps
        self._snapshots = file.parent if opening.checkpoint else None  # the folder of those that are read
        self._held: Snapshot | None = None
        self._read_at = clock()
        # By peer: the round and the model, x (d,), that a late joiner fetched.
        self._candidates: dict[str, tuple[int, Mapping[str, Tensor]]] = {}
        self._joining_turn = 0
        self.opened = calls.Opened(
            learner.layout.dim, self._schema, learner.task.metric, learner.task.higher_is_better, learner.device,
            learner.data.samples, resumed, self._round, EngineFigures(learner.local_steps, epsilon=learner.epsilon),
            self._best.value, self._best.round,
            0 if self._stage is None else self._stage.batches,
            0 if learner.cut is None else stages.most_state_bytes(learner.cut),
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

    def _spare(self) -> Tensor | None:
        """(d,) the model of the last checkpoint; None if there is none that can be read."""
        assert self._checkpoints is not None
        with suppress(ConfigError):
            if (saved := self._checkpoints.load()) is not None:
                return saved.tensors["x"]
        return None

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
            if (result := next(self._evaluation)) is None:
                return None
            self._evaluation = None
            round_, model, keep = self._evaluated
            if keep:
                self._best.offer(result.value, round_, model)
            del self._evaluated, model
            self.learner.trim()  # of its copy
            return calls.Evaluated(
                result.value, result.loss, result.samples, self._best.value, self._best.round, dict(result.others)
            )
        self._evaluate_next = True
        began = self._clock()
        self._tally.note(self._threads.step(lambda: self.learner.local_step(self._round)))
        self.exchanges.effort.trained(self._clock() - began)
        if self._free:
            self.learner.publish(self.learner.phase(self._round, 1.0))
            for done in self._taken:
                self._add(done)
            self._taken = []
            return None
        self._left -= 1
        return self._finish() if self._left == 0 else None

    @contextmanager
    def _around_gradient(self) -> Iterator[None]:
        self._in_gradient = True
        try:
            with self.around_gradient():
                yield
        finally:
            self._in_gradient = False

    @property
    def long_steps(self) -> bool:
        """Whether calls should not wait for a gradient: those of a large model take long. An island's ranks compute it in step."""
        return self.learner.large and self.learner.island is None

    def answers_beside_gradient(self, call: calls.Request) -> bool:
        """Whether a gradient is computed beside which a call can be answered: it only reads the model, which has all that was taken."""
        return self._in_gradient and not self._taken and isinstance(call, BESIDE_GRADIENT)

    def _finish(self) -> calls.Trained:
        """The local steps of a round are done."""
        if self._granted.ahead and self._frozen is not None:
            self._unfrozen = True
        else:
            self._freeze()
        return self._trained()

    def _freeze(self) -> None:
        self._unfrozen, self._frozen_in = False, self._phase
        self.learner.publish(self._frozen_in)
        self.learner.rest()
        shared = self.learner.shared()
        self._frozen = shared if shared is self.learner.x and not self._sent_noise else self._as_sent(shared)

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
        threads = self._threads.number if learner.device == "cpu" else None
        figures = EngineFigures(
            learner.local_steps, tally.mean, learner.epsilon, distance, busy, taken, threads, learner.noise_scale
        )
        return calls.Trained(
            self._round, figures, now - tally.began, tally.undone, learner.halted, learner.take_notes()
        )

    def _as_sent(self, vector: Tensor) -> Tensor:
        """(D,) a copy, with noise if asked for. Both ends of an exchange use it, so the sum of both vectors stays."""
        return self._csprng.noised(vector, self._sent_noise) if self._sent_noise else vector.clone()

    def train(self, call: calls.Train) -> calls.Trained | None:
        """Start a round; its reply comes out of `step`."""
        if self._pace.kind == "clock" or self._computing:
            raise LocalProtocolError("a round is granted where there are rounds, one at a time")
        if not call.ahead:
            self.thaw()
        elif self._frozen is self.learner.x:
            self._frozen = self._as_sent(self.learner.x)
        self._round, self._granted = call.round, call
        if self._stage is not None:  # whose steps are done
            return self._finish()
        self._tally = _Tally(self._clock())
        self._left = call.steps
        return None if call.steps > 0 else self._finish()

    def free(self, call: calls.Free) -> calls.Trained:
        """Train without pause, or pause."""
        if self._pace.kind != "clock":
            raise LocalProtocolError("training runs free in clock pace")
        self._free, self._round = call.on, call.round
        self.learner.mark_good()
        return self._trained(self._distances.figure())

    def mix(self, call: calls.Mix) -> calls.Done:
        """Add what was committed, and thaw. What was committed after the last round's Mix counts without another Train."""
        self._must_rest()
        if self._frozen is None and self._committed:
            self.train(calls.Train(call.round, 0))
        anchor = self.learner.anchor
        parted = () if anchor is None else self.pulls.parted(anchor)
        excluded = self.thaw(call.asked, own=call.own)
        self._round = call.round + 1
        if self._unfrozen:
            self._freeze()
        return calls.Done(clipped_or_excluded=excluded, distance=self._distances.figure(), parted=parted)

    def thaw(self, asked: Sequence[str] = (), *, own: bool = True) -> tuple[str, ...] | None:
        """Combine what was committed or received since the last Mix. -> of peers in `asked`, those the rule excluded, if it says so"""
        if self._frozen is None:
            return None
        excluded, order = None, sorted(asked)
        frozen, self._frozen = self._frozen, None
        committed, self._committed = self._committed, []
        self.learner.trim()
        if gathers(self.learner.mixer.edge):
            received, present = self.pulls.received(asked)
            self.pulls.forget_all()
            self._distances.record_vectors(order, received, present, self.learner.shared())
            if not own and order:
                order = order[1:]
                excluded = self.learner.take_over(order, received, self._frozen_in)
            else:
                excluded = self.learner.gather(order, received, present, self._frozen_in)
        elif broadcasts(self.learner.mixer.edge):
            sent, messages, present = self.pulls.messages(asked)
            self.pulls.forget_all()
            order = sorted({*order, self._node})
            excluded = self.learner.advance(frozen, sent, messages, present, order, self._frozen_in)
        else:
            committed.sort(key=lambda done: done.peer)  # stable: each peer's in order
            self.learner.absorb(committed, self._frozen_in)
            del committed
        self.learner.mark_good()
        self.learner.trim()
        if excluded is None:
            return None
        return tuple(peer for peer, bad in zip(order, excluded.tolist(), strict=True) if bad and peer in asked)

    @one_thread()
    def publish(self, call: calls.Publish) -> calls.Published:
        """The frozen vector, encoded for all who pull it."""
        return self.pulls.publish(call, self.vector_for(""), self.learner.anchor)

    @one_thread()
    def verify(self, call: calls.VerifyUpdate) -> calls.Done:
        """A peer's vector. It counts at the Mix of this round, whichever round it is from."""
        if self._frozen is None:
            raise LocalProtocolError("updates are received between the end of Train and Mix")
        self.pulls.verify(call)
        return calls.Done()

    @one_thread()
    def offer(self, call: calls.Offer) -> calls.Offered:
        """Initiator's values."""
        vector, steps = self.vector_for(call.peer), self._local_steps
        return self.exchanges.offer(call, vector, local_steps=steps, exclusive=self._pace.kind == "clock")

    @one_thread()
    def answer(self, call: calls.Answer) -> calls.Answered:
        """Responder's difference."""
        vector, clock = self.vector_for(call.peer), self._pace.kind == "clock"
        return self.exchanges.answer(call, vector, round=self._round, exclusive=clock, unbooked=self._committed)

    @one_thread()
    def apply(self, call: calls.Apply) -> calls.Done:
        """Initiator's commit."""
        return self.take(self.exchanges.apply(call, self._committed))

    @one_thread()
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
        """The peer is gone. What it committed stays in the model; its flow and its vector since the last Mix are deleted."""
        for kept in (self.exchanges, self.pulls, self._distances):
            kept.forget(call.peer)
        self._book_now(call.peer)
        return calls.Done(dominated=self.learner.revoke(call.peer))

    def vector_for(self, peer: str) -> Tensor:
        """(D,) the vector for an exchange with `peer`; "": for all that pull it. Raises LocalProtocolError if none is frozen."""
        if self._pace.kind == "clock":
            shared = self.learner.shared()
            return self._as_sent(shared) if self._sent_noise else shared
        if self._frozen is None:
            raise LocalProtocolError("there is no frozen vector between Mix and the end of the next Train")
        return self._frozen

    def take(self, done: Done) -> calls.Done:
        """Add the effect of a committed exchange: at the next Mix in steps pace, else at once, or at the end of the local step."""
        if self._pace.kind != "clock":
            self._committed.append(done)
        elif self._in_gradient:
            self._taken.append(done)
        else:
            self._add(done)
        clipped = self.exchanges.clipped(done)
        return calls.Done(clipped, clip=None if clipped or isinstance(done, Swapped) else 1.0)

    def _add(self, done: Done) -> None:
        steps = self.learner.local_steps
        phase = self.learner.phase(self._round, float(steps - self._last_exchange))
        self._mean_gap += _AVERAGED * (phase.local_steps - self._mean_gap)
        self._last_exchange = steps
        self.learner.absorb([done], phase)

    def _book_now(self, peer: str) -> None:
        """Add a peer's committed effects to its flow before that is settled or deleted, or it would grow anew at Mix."""
        self._committed = [self.learner.flow_only(done) if done.peer == peer else done for done in self._committed]

    @property
    def _local_steps(self) -> float:
        """K of the gain. In clock pace it is measured: local steps between two exchanges that we initiate, about every second one.

        A gap that is longer than usual counts in full, as the models had that long to part; so the gain errs to the small side.
        """
        if self._pace.kind != "clock":
            return float(self._pace.local_steps)
        return max(1.0, 2.0 * self._mean_gap, float(self.learner.local_steps - self._last_exchange))

    def limit(self, call: calls.Limit) -> calls.Done:
        """Another number of threads."""
        torch.set_num_threads(call.threads or self._most_threads)
        self._threads = Threads(self._clock, fixed=call.threads > 0 or self._fixed_threads)
        return calls.Done()

    def evaluate(self, call: calls.Evaluate) -> None:
        """Start an evaluation of the model as it is now; its reply comes out of `step`."""
        if self._evaluation is not None:
            raise LocalProtocolError("an evaluation is under way")
        model, self._evaluation = self.learner.evaluation()
        self._evaluated = call.round, model, call.keep

    def save(self, call: calls.Save) -> calls.Done | calls.Refused:
        """Write the checkpoint and the best model, and a model alone if asked."""
        return self._write(call.export, best=call.best)

    def stop(self, _call: calls.Stop) -> calls.Done | calls.Refused:
        """Write everything for the last time."""
        return self._write("", last=True)

    def _write(self, export: str, *, best: bool = False, last: bool = False) -> calls.Done | calls.Refused:
        learner = self.learner
        try:
            if self._checkpoints is not None:
                self._checkpoints.save(Checkpoint(self._round, learner.local_steps, learner.tensors()))
            self._best.write()
            if self._held is not None and self._clock() - self._read_at > KEPT_S:
                self._let_go()
            if export and best:
                if not self._best.copy(Path(export)):
                    return calls.Refused("state", "no model was evaluated yet, so there is no best one")
            elif export:
                facts = {"kind": "export", "round": self._round, "schema": self._schema.hex(), **learner.facts()}
                tensor_file.save(Path(export), learner.state_dict(), facts).replace(export)
            if last and learner.private is not None:
                learner.private.accountant.write()
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            return calls.Refused("disk", f"{name}{error.strerror or error}; training goes on, free some space (df -h)")
        return calls.Done()

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.close()
        self._held = None

    def snapshot(self, _call: calls.Snapshot) -> calls.Held | calls.Refused:
        """Hold the model as it is now for `read`, instead of the one before."""
        facts: dict[str, str | int] = {"kind": _MODEL, "round": self._round, "schema": self._schema.hex()}
        offered = self.learner.offered
        self._let_go()  # never two of them
        self._read_at = self._clock()
        try:
            offered = self._as_sent(offered) if self._sent_noise else offered
            self._held = held = Snapshot(self._snapshots, {"x": offered}, facts)
        except OSError as error:
            return calls.Refused("disk", f"no model for late joiners: {error.strerror or error}")
        return calls.Held(held.number, held.size, held.root, self._round, self._schema, held.digests)

    def read(self, call: calls.ReadChunk) -> calls.ChunkRead:
        """Bytes of the held snapshot."""
        held = self._held
        self._read_at = self._clock()
        there = held is not None and held.number == call.snapshot
        return calls.ChunkRead(held.read(call.offset, call.length) if held is not None and there else b"")

    def consider(self, call: calls.Consider) -> calls.Done:
        """Hold a fetched model; RemoteProtocolError if it does not fit."""
        try:
            tensors, facts = tensor_file.load(Path(call.file)) if call.file else tensor_file.unpack(call.state)
        except ValueError as error:
            raise RemoteProtocolError(call.peer, "state_damaged") from error
        except OSError as error:
            raise LocalProtocolError(f"a model that was fetched cannot be read: {error.strerror or error}") from error
        if facts.get("kind") != _MODEL or facts.get("schema") != self._schema.hex() or tensors.keys() != {"x"}:
            raise RemoteProtocolError(call.peer, "state_of_another_model")
        try:
            self.learner.check(self.learner.whole(tensors["x"]))
        except ValueError as error:
            raise RemoteProtocolError(call.peer, "state_unusable") from error
        tensor_file.release(tensors)
        if call.turn != self._joining_turn:
            self._candidates, self._joining_turn = {}, call.turn
        if len(self._candidates) >= MAX_CANDIDATES and call.peer not in self._candidates:
            raise LocalProtocolError(f"{MAX_CANDIDATES} models are held already")
        self._candidates[call.peer] = (call.round, tensors)
        return calls.Done()

    def agree(self, _call: calls.Agree) -> calls.Agreed:
        """Take over what the models held agree on; every edge starts anew. Raises LocalProtocolError if none is held."""
        self._must_rest()
        if not self._candidates:
            raise LocalProtocolError("no model is held")
        peers = sorted(self._candidates)
        rounds, held = zip(*(self._candidates[peer] for peer in peers), strict=True)
        self._candidates = {}
        agreement = self._compared(held, rounds)
        at = median_low(rounds[i] for i in agreement.cluster) if agreement.cluster else 0
        if agreement.state is not None:
            self.learner.install(agreement.state, at)
            for kept in (self.exchanges, self.pulls, self._distances):
                kept.forget_all()
            self._frozen, self._unfrozen, self._committed, self._round = None, False, [], at
        names = (tuple(peers[i] for i in which) for which in (agreement.cluster, agreement.outside))
        return calls.Agreed(at, *names)

    def _compared(self, held: Sequence[Mapping[str, Tensor]], rounds: Sequence[int]) -> model_agreement.Agreement:
        """The agreement of models, of whose files only the part that is being read is in memory."""
        models = [tensors["x"] for tensors in held]
        origin = self.learner.offered_at_first.to(models[0].device)

        def release() -> None:
            for tensors in held:
                tensor_file.release(tensors)

        return model_agreement.agree(models, origin, rounds, release)

    @property
    def _staged(self) -> stages.Stage:
        if self._stage is None:
            raise LocalProtocolError("this model is whole")
        return self._stage

    def advance(self, call: calls.Advance) -> calls.Advanced:
        """A crew's forward."""
        return calls.Advanced(
            *self._staged.advance(call.crew, call.step, call.micro, call.payload, call.labels, evaluate=call.evaluate)
        )

    def retreat(self, call: calls.Retreat) -> calls.Advanced:
        """A crew's backward."""
        return calls.Advanced(self._staged.retreat(call.crew, call.step, call.micro, call.payload), b"")

    def summary(self, _call: calls.Summary) -> calls.Summed:
        """This stage's part of a step, or of an evaluation."""
        return calls.Summed(*self._staged.summary())

    def finish(self, call: calls.Finish) -> calls.Done:
        """The end of a step."""
        self._round = call.round
        self._tally.note(self.learner.crew_step(call.round, call.loss, call.scale, call.fine))
        self.learner.local_steps = call.steps
        self._staged.finish(applied=call.fine)
        return calls.Done()

    def abandon(self, _call: calls.Abandon) -> calls.Done:
        """The step, or the evaluation, is given up, or over."""
        self._staged.abandon()
        return calls.Done()

    def point(self, call: calls.Point) -> calls.Pointed:
        """States of a stage."""
        stage, learner = self._staged, self.learner
        size = 0
        if stage.moved(call.crew):
            learner.local_steps = 0
        if call.action == "keep":
            size = stage.keep(learner.local_steps, learner.tensors())
        elif call.action != "look":
            if call.action == "take":
                size = stage.put(call.step, call.state)
            try:
                learner.rewind(stage.unpacked(call.step), call.step)
            except (ValueError, OSError) as error:
                if call.action == "take":
                    stage.drop(call.step)
                raise LocalProtocolError(f"the state {error}") from error
            stage.abandon()
        return calls.Pointed(learner.local_steps, stage.points, size)

    def read_point(self, call: calls.ReadPoint) -> calls.ChunkRead:
        """Bytes of a kept state."""
        state = self._staged.read(call.step)
        return calls.ChunkRead(state[call.offset : call.offset + call.length], len(state))

    def _must_rest(self) -> None:
        if self._left > 0:
            raise LocalProtocolError("local steps of the round are left to do")


def _sent_noise(opening: calls.Open, edge: Kind) -> float:
    """Standard deviation of the noise on vectors sent. Raises ConfigError if increments are sent, on which noise would add up."""
    if opening.privacy.exchange_noise and (swaps(edge) or tracks(edge) or broadcasts(edge)):
        chosen = f"mix.track = {edge.track!r}" if tracks(edge) else f"mix.kind = {opening.manifest.mix.kind!r}"
        raise ConfigError(
            f"privacy.exchange_noise: must be 0 with {chosen}, whose messages add up, "
            f"got {opening.privacy.exchange_noise:g}; pet, dsgd, gather and others take it"
        )
    return opening.privacy.exchange_noise
