"""Driver of a task's local steps and evaluations, a slice at a time, that answers calls in between."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from starling.gossip.errors import ConfigError, LocalProtocolError
from starling.node import catalogues
from starling.node.engine.devices import Gpu
from starling.node.engine.gossip_session import BACKGROUND_CALLS, session_of
from starling.node.engine.measured_model import MeasuredModel
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.rounds import Tally
from starling.node.engine.threads import threads_of
from starling.node.engine.vectors import GradientWindow
from starling.node.rpc import calls
from starling.node.status.snapshot import EngineFigures
from starling.node.tasks.evaluate import Result


@dataclass(slots=True)
class _Evaluation:
    """An evaluation under way: rounds done, the model, and Evaluate's `keep`."""

    round: int
    model: MeasuredModel
    keep: bool
    slices: Iterator[Result | None]


class TaskDriver:
    """Drives a session by a task's trainer.

    Raises ConfigError: the manifest, the node's settings or the checkpoint cannot be used.

    Attributes:
        reply: to Open.
        handle: answers a call; None: the reply comes out of `step`.
        sources, due_s: nothing but calls and its own slices.
    """

    sources: Sequence[int] = ()
    due_s: float | None = None

    def __init__(self, open_request: calls.Open, clock: Callable[[], float], work: Callable[[], float], csprng: Csprng) -> None:
        self._clock, self.window = clock, GradientWindow()
        self._evaluation: _Evaluation | None = None
        self._evaluates = False
        most = torch.get_num_threads()
        torch.set_num_threads(open_request.threads or most)
        self.trainer = trainer = catalogues.trainer(open_request)(open_request, csprng, self.window)
        self.gpu = Gpu(trainer.facts.device, clock)
        # compiled code depends on the number of threads
        fixed = trainer.facts.device != "cpu" or open_request.numerics.compile
        self.threads = threads_of(clock, fixed=open_request.threads > 0 or fixed)
        self.session, resumed = session_of(open_request, trainer, csprng, self.window, self._report, clock, work)
        trainer.noted = self.session.rounds.noted
        trainer.guard.checkpoint = self.session.store.model

        def limit(call: calls.Limit) -> calls.Done:
            """Set the number of threads."""
            torch.set_num_threads(call.threads or most)
            self.threads = threads_of(clock, fixed=call.threads > 0 or fixed)
            return calls.Done()

        self.session.answers[calls.Limit] = limit
        self.session.answers[calls.Evaluate] = self._evaluate
        self.handle = self.session.handle
        self.reply = self.session.opened(trainer, resumed=resumed)

    @property
    def busy(self) -> bool:
        """Return whether local steps are granted, or an evaluation is under way."""
        return self.session.granted > 0 or self._evaluation is not None

    @property
    def undone(self) -> int:
        """Return the number of local steps undone so far."""
        return self.trainer.local_step.undone

    @property
    def during(self) -> str:
        """Return what the last slice did, for messages."""
        return f"{'the evaluation after ' * self._evaluates}local step {self.trainer.steps}"

    def step(self) -> calls.Trained | calls.Evaluated | calls.Refused | None:
        """Do a local step, or a batch of an evaluation, alternately if both are due -> a reply to Train or Evaluate.

        An evaluation that cannot be done is Refused, and training goes on.
        """
        session = self.session
        self._evaluates = self._evaluation is not None and not (self._evaluates and session.granted)
        if self._evaluates:
            return self._evaluated()
        began = self._clock()
        loss = self.threads.step(self.trainer.step, session.round)
        return session.stepped(loss, self._clock() - began)

    @property
    def long_steps(self) -> bool:
        """Tell if calls must not wait for a gradient."""
        return self.trainer.means.long_steps

    def answers_in_background(self, call: calls.Request) -> bool:
        """Tell if a call can be answered while a gradient is computed: it only reads the model, and no effects wait."""
        return self.window.open and not self.session.rounds.waiting and isinstance(call, BACKGROUND_CALLS)

    def _evaluate(self, call: calls.Evaluate) -> None:
        """Start an evaluation of the current model; `step` returns its reply."""
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

    def _report(self, round: int, tally: Tally, distance: float | None) -> calls.Trained:
        trainer, now, (busy, taken) = self.trainer, self._clock(), self.gpu.poll()
        own = trainer.figures()
        threads = self.threads.number if trainer.facts.device == "cpu" else None
        figures = EngineFigures(trainer.steps, tally.mean, own.epsilon, distance, busy, taken, threads, own.noise_scale)
        return calls.Trained(round, figures, now - tally.began, tally.undone, own.halted, trainer.take_notes())
