"""Drive a session by a script's local steps: grant them, take over their result, and continue without a script while none is connected.

Without a script rounds have no local steps, as in a pause, once one has been here or after FIRST_S.

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from starling.gossip.errors import ConfigError, LocalProtocolError
from starling.gossip.mix.borne import Borne, Total, merged
from starling.gossip.mix.memories import Decay
from starling.node.engine.gossip_session import session_of
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.rounds import Tally
from starling.node.engine.script.contact import Contact
from starling.node.engine.script.trainer import ScriptTrainer
from starling.node.engine.vectors import GradientWindow
from starling.node.rpc import calls
from starling.node.rpc import script as messages
from starling.node.rpc.script import Closed
from starling.node.rpc.shared_vectors import Half, SharedVectors
from starling.node.status.snapshot import EngineFigures

FIRST_S = 120.0  # seconds that a granted round waits for the first script
AWAY_S = 5.0  # seconds that it waits for a script that was connected before: its restart imports torch
LEAST_S = 1.0  # least seconds of a round without a script, which takes as long as the last one with it

Ended = calls.Trained | calls.Evaluated | calls.Refused | None
"""A reply to Train or Evaluate; None: neither has ended."""


class ScriptDriver:
    """A script's replica and the session that its steps drive.

    Raises ConfigError: the manifest, the node's settings or the checkpoint cannot be used.

    Attributes:
        session: what answers calls.
        trainer: holds the replica.
        contact: with the script.
        reply: to Open.
        during: what a slice does, for messages.
        long_steps: calls wait for no gradient.
    """

    during = "a message of the script"
    long_steps = False

    def __init__(self, open_request: calls.Open, clock: Callable[[], float], work: Callable[[], float], csprng: Csprng) -> None:
        if not open_request.checkpoint:
            raise ConfigError("script: a node of a script needs a run directory, in which the script meets it")
        torch.set_num_threads(open_request.threads or 1)  # the script computes
        self._clock, self._local_steps = clock, open_request.manifest.pace.local_steps
        self.trainer = trainer = ScriptTrainer(open_request)
        window = GradientWindow()
        self.session, resumed = session_of(open_request, trainer, csprng, window, self._report, clock, work)
        answers = self.session.answers
        self._saves, self._stops = answers[calls.Save], answers[calls.Stop]
        answers[calls.Evaluate], answers[calls.Limit] = self._evaluate, self._limit
        answers[calls.Save], answers[calls.Stop] = self._save, self._stop
        self._finished = False
        self._kept = self.session.round if resumed else -1  # round of the newest checkpoint; -1: none
        self._keep = -1  # round of a checkpoint whose script state is not stored yet
        self._measuring: calls.Evaluate | None = None
        self._patience, self._missed, self._usual_s = FIRST_S, clock(), LEAST_S
        self.contact = Contact(Path(open_request.checkpoint).parent, open_request.manifest, trainer)
        self.reply = self.session.opened(trainer, resumed=resumed)

    @property
    def busy(self) -> bool:
        """Return whether a script has sent something, or has been away for so long that the round ends without it."""
        return self.contact.is_heard or self.due_s == 0.0

    @property
    def sources(self) -> Sequence[int]:
        """Return the descriptors on which scripts are heard."""
        return self.contact.sources

    @property
    def due_s(self) -> float | None:
        """Return the seconds until a granted round ends without a script."""
        wanted = self._measuring is not None or 0 < self.session.granted < math.inf
        if self.contact.is_up or not wanted:
            return None
        return max(0.0, self._missed + self._patience - self._clock())

    @property
    def undone(self) -> int:
        """Return the number of local steps undone so far."""
        return self.trainer.undone

    def handle(self, request: calls.Request) -> calls.Reply | None:
        """Answer a call; None: the reply comes out of `step`."""
        reply = self.session.handle(request)
        with suppress(Closed):  # a closed connection is noticed when the script is heard
            self._go_on()
        return reply

    def step(self) -> Ended:
        """Process what a script sent, or end a call that waits for a script in vain."""
        if not self.contact.is_heard:
            return self._without()
        try:
            reply = self._heard(self.contact.hear())
            self._go_on()
        except Closed:
            self.contact.gone()
            self._missed, self._patience = self._clock(), AWAY_S
            return None
        return reply

    def _heard(self, said: messages.FromScript | None) -> Ended:
        contact = self.contact
        match said:
            case messages.Hello():
                contact.welcome(said, self.session.round, self._kept)
            case messages.Stepped(steps=steps) if contact.vectors is not None and not contact.waits and steps >= 0:
                return self._stepped(said, contact.vectors)
            case messages.Measured() if contact.measures:
                return self._measured(said)
            case None:
                pass
            case _:
                contact.hang_up()
        return None

    def _stepped(self, said: messages.Stepped, vectors: SharedVectors) -> calls.Trained | None:
        trainer, session = self.trainer, self.session
        since, is_finite = vectors.engine if self.contact.ahead else None, True
        try:
            trainer.take(vectors.script.x, since=None if since is None else since.x)
            self._remember(said, vectors.script, since)
        except ValueError:
            is_finite = False
            trainer.note("the script's parameters are not finite: its steps of this round do not count")
        self.contact.waits, self._usual_s = True, max(LEAST_S, said.seconds)
        granted, reply = session.granted, None
        steps = said.steps if granted == math.inf else min(said.steps, int(granted))
        loss = (math.nan if said.loss is None else said.loss) if is_finite else None
        trainer.undone += 0 if is_finite else steps
        trainer.steps += steps
        for _ in range(steps):
            reply = session.stepped(loss, said.seconds / steps)
        return reply or self._cut_short()

    def _remember(self, said: messages.Stepped, given: Half, since: Half | None) -> None:
        trainer, decays = self.trainer, None
        if said.decays is not None:
            decays = [Decay(slice(each.start, each.stop), each.mean, each.square) for each in said.decays]
            stops = [0, *(each.stop for each in said.decays)]
            if [each.start for each in said.decays] != stops[:-1] or stops[-1] != trainer.layout.dim:
                self.contact.hang_up()
        trainer.remember(given, said.age, decays, said.steps, since=since)
        trainer.rates.used(said.effective_lr)
        state: Any = trainer.replica.state
        if isinstance(state, Total) and len(said.known) == state.known.numel():
            known = Borne(*said.known)
            if since is not None:
                known = merged(known, self.contact.known, Borne(*state.known.tolist()))
            trainer.replica.state = replace(state, known=state.known.new_tensor(known))

    def _cut_short(self) -> calls.Trained | None:
        return self.session.rounds.cut_short() if 0 < self.session.granted < math.inf else None

    def _measured(self, said: messages.Measured) -> calls.Evaluated | calls.Refused:
        call, self._measuring = self._measuring, None
        self.contact.waits, self.contact.measures = True, False
        if call is None:
            self.contact.hang_up()
        if said.value is None or not math.isfinite(said.value):
            return calls.Refused("unmeasured", said.reason or "the script's evaluation gave no number")
        best = self.session.store.best
        if call is not None and call.keep:
            best.offer(said.value, call.round, self.trainer.model())
        loss = None if math.isnan(said.loss) else said.loss
        return calls.Evaluated(said.value, loss, said.samples, best.value, best.round, dict(said.others))

    def _without(self) -> calls.Trained | calls.Refused | None:
        """Continue although no script came in time."""
        self._missed, self._patience = self._clock(), self._usual_s
        if self._measuring is not None:
            self._measuring = None
            return calls.Refused("unmeasured", "the training script is not here, which evaluates the model")
        self.trainer.note("the training script is not here: no local steps are done, as in a pause")
        return self._cut_short()

    def _go_on(self) -> None:
        """Let the script do what is due, if it waits. Raises Closed: it is gone."""
        contact, session = self.contact, self.session
        if not contact.waits or not contact.is_up:
            return
        if self._measuring is not None:
            contact.measure(self._measuring.round)
        elif session.granted > 0 or self._finished:
            keep, self._keep = self._keep, -1
            steps = self._local_steps if session.granted == math.inf else int(session.granted)
            contact.grant(session.round, steps, keep=keep, finished=self._finished)

    def _evaluate(self, call: calls.Evaluate) -> None:
        if self._measuring is not None:
            raise LocalProtocolError("an evaluation is under way")
        self._measuring = call

    def _limit(self, call: calls.Limit) -> calls.Done:
        torch.set_num_threads(call.threads or 1)
        return calls.Done()

    def _save(self, call: calls.Save) -> calls.Reply:
        reply: calls.Reply = self._saves(call)
        if isinstance(reply, calls.Done):
            self._keep = self._kept = self.session.round
        self._finished = self._finished or call.final
        return reply

    def _stop(self, call: calls.Stop) -> calls.Reply:
        """Write everything, and tell the script that the node ends."""
        reply: calls.Reply = self._stops(call)
        self._finished, self._measuring = True, None
        with suppress(Closed):
            self._go_on()
        self.contact.close()
        return reply

    def _report(self, round: int, tally: Tally, distance: float | None) -> calls.Trained:
        trainer = self.trainer
        figures = EngineFigures(trainer.steps, tally.mean, None, distance)
        return calls.Trained(round, figures, self._clock() - tally.began, tally.undone, "", trainer.take_notes())
