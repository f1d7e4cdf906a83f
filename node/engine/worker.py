"""The engine: a plain synchronous object that answers calls and does its work a slice at a time.

Its driver (`node.engine.process` behind a pipe, `node.simulate.virtual.inline_engine` under virtual time) alternates `handle` and `step`.
Expected errors are answered by `Refused` and have changed nothing; any other exception is a bug, or one of the owner's task.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from starling.gossip.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from starling.gossip.replica import Replica
from starling.node.engine.devices import Gpu
from starling.node.engine.gossip_session import BESIDE_GRADIENT, GossipSession, session_of
from starling.node.engine.local.opening import long_steps, trainer_of
from starling.node.engine.local.task_trainer import TaskTrainer
from starling.node.engine.measured_model import MeasuredModel
from starling.node.engine.privacy.csprng import Csprng, Entropy
from starling.node.engine.rounds import Tally
from starling.node.engine.threads import threads_of
from starling.node.engine.vectors import GradientWindow
from starling.node.rpc import calls
from starling.node.status.snapshot import EngineFigures
from starling.node.tasks.evaluate import Result


@dataclass(slots=True)
class _Evaluation:
    """Under way: rounds done, the model, and Evaluate's `keep`."""

    round: int
    model: MeasuredModel
    keep: bool
    slices: Iterator[Result | None]


class Worker:
    """Opens once, then answers.

    Args:
        clock: seconds, monotonic, for `Trained.seconds`.
        entropy: of the CSPRNG.
        work: processor seconds of the calling thread, for what exchanges cost. Left out: `clock`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        entropy: Entropy = os.urandom,
        work: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._work = work or clock
        self._entropy = entropy
        self._opened: Opened | None = None
        self._in_slice = self._evaluates = False
        self._evaluation: _Evaluation | None = None

    @property
    def busy(self) -> bool:
        """There is a slice to do: call `step` when no call waits."""
        return self._opened is not None and (self._opened.session.granted > 0 or self._evaluation is not None)

    @property
    def is_open(self) -> bool:
        """Whether Open was answered."""
        return self._opened is not None

    @property
    def opened(self) -> "Opened":
        """What Open made."""
        assert self._opened is not None
        return self._opened

    @property
    def trainer(self) -> TaskTrainer:
        """For simulations, checks and tests, as the next; a daemon asks by calls."""
        return self.opened.trainer

    @property
    def replica(self) -> Replica:
        """The node's copy of the model."""
        return self.opened.trainer.replica

    @property
    def session(self) -> GossipSession:
        """What answers calls."""
        return self.opened.session

    @property
    def vector(self) -> Tensor:
        """(d,) a copy of the model; between rounds of broadcasts, the anchor."""
        return self.replica.settled.clone()

    @property
    def undone(self) -> int:
        """Local steps undone so far."""
        return 0 if self._opened is None else self.trainer.local_step.undone

    @property
    def during(self) -> str:
        """What the slice did that raised, for messages; "" if it was a call."""
        return f"{'the evaluation after ' * self._evaluates}local step {self.trainer.steps}" if self._in_slice else ""

    def step(self) -> calls.Trained | calls.Evaluated | calls.Refused | None:
        """Do one slice while `busy` -> the reply to Train or Evaluate if that was its last.

        A slice is a local step, or a batch of an evaluation: in turn if both are wanted. An evaluation that cannot be done is Refused, and
        training goes on.
        """
        opened, self._in_slice = self.opened, True
        self._evaluates = self._evaluation is not None and not (self._evaluates and opened.session.granted)
        if self._evaluates:
            return self._evaluated()
        began = self._clock()
        loss = opened.threads.step(opened.trainer.step, opened.session.round)
        return opened.session.stepped(loss, self._clock() - began)

    def handle(self, request: calls.Request) -> calls.Reply | None:
        """Answer a call; None: the reply will come out of `step` (Train, Evaluate)."""
        self._in_slice = False
        try:
            if self._opened is not None and not isinstance(request, calls.Open):
                return self._opened.session.handle(request)
            return self._open(request)
        except ConfigError as error:
            return calls.Refused("config", str(error))
        except RemoteProtocolError as error:
            return calls.Refused("peer", error.reason)
        except LocalProtocolError as error:
            return calls.Refused("state", str(error))

    def handle_beside(self, request: calls.Request) -> calls.Reply | None:
        """`handle` while another thread computes a gradient in `step`; None: the call must wait for the end of the step."""
        return self.handle(request) if self.opened.answers_beside_gradient(request) else None

    def _open(self, request: calls.Request) -> calls.Opened:
        if not isinstance(request, calls.Open):
            raise LocalProtocolError("the engine is not open")
        if self._opened is not None:
            raise LocalProtocolError("the engine is open already")
        self._opened = opened = Opened(request, self._clock, self._work, Csprng(self._entropy))
        opened.session.answers[calls.Evaluate] = self._evaluate
        return opened.reply

    def _evaluate(self, call: calls.Evaluate) -> None:
        """Start an evaluation of the model as it is now; its reply comes out of `step`."""
        if self._evaluation is not None:
            raise LocalProtocolError("an evaluation is under way")
        model, slices = self.trainer.evaluation()
        self._evaluation = _Evaluation(call.round, model, call.keep, slices)

    def _evaluated(self) -> calls.Evaluated | calls.Refused | None:
        evaluation, best = self._evaluation, self.session.store.best
        assert evaluation is not None
        try:
            result = next(evaluation.slices)
        except ConfigError as error:
            self._evaluation = None
            return calls.Refused("config", str(error))
        if result is None:
            return None
        self._evaluation = None
        if evaluation.keep:
            best.offer(result.value, evaluation.round, evaluation.model)
        del evaluation
        self.trainer.trim()  # of its copy
        return calls.Evaluated(result.value, result.loss, result.samples, best.value, best.round, dict(result.others))


class Opened:
    """A task's trainer and the session that it drives.

    Raises ConfigError: the manifest, the node's settings or the checkpoint cannot be used.

    Attributes:
        reply: to Open.
    """

    def __init__(
        self, opening: calls.Open, clock: Callable[[], float], work: Callable[[], float], csprng: Csprng
    ) -> None:
        self._clock, self.window = clock, GradientWindow()
        most = torch.get_num_threads()
        torch.set_num_threads(opening.threads or most)
        self.trainer = trainer = trainer_of(opening, csprng, self.window)
        self.gpu = Gpu(trainer.facts.device, clock)
        # compiled code is of one number of threads
        fixed = trainer.facts.device != "cpu" or opening.numerics.compile
        self.threads = threads_of(clock, fixed=opening.threads > 0 or fixed)
        self.session, resumed = session_of(opening, trainer, csprng, self.window, self._report, clock, work)
        trainer.noted = self.session.rounds.noted
        trainer.guard.checkpoint = self.session.store.model

        def limit(call: calls.Limit) -> calls.Done:
            """Use another number of threads."""
            torch.set_num_threads(call.threads or most)
            self.threads = threads_of(clock, fixed=call.threads > 0 or fixed)
            return calls.Done()

        self.session.answers[calls.Limit] = limit
        facts, best = trainer.facts, self.session.store.best
        self.reply = calls.Opened(
            trainer.model.layout.dim, trainer.schema, facts.metric, facts.higher_is_better, facts.device, facts.samples,
            resumed, self.session.round, EngineFigures(trainer.steps, epsilon=trainer.figures().epsilon), best.value,
            best.round, facts.crew.batches, facts.crew.most_state_bytes,
        )  # fmt: skip

    @property
    def long_steps(self) -> bool:
        """Whether calls should not wait for a gradient."""
        return long_steps(self.trainer.model, self.trainer.means.island)

    def answers_beside_gradient(self, call: calls.Request) -> bool:
        """Whether a gradient is computed beside which a call can be answered: it only reads the model, which has all that was taken."""
        return self.window.open and not self.session.rounds.waiting and isinstance(call, BESIDE_GRADIENT)

    def _report(self, round: int, tally: Tally, distance: float | None) -> calls.Trained:
        trainer, now, (busy, taken) = self.trainer, self._clock(), self.gpu.look()
        own = trainer.figures()
        threads = self.threads.number if trainer.facts.device == "cpu" else None
        figures = EngineFigures(trainer.steps, tally.mean, own.epsilon, distance, busy, taken, threads, own.noise_scale)
        return calls.Trained(round, figures, now - tally.began, tally.undone, own.halted, trainer.take_notes())
