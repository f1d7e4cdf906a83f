"""Make a script part of a node: count its local steps, give its parameters to the engine at a round's end, and take mixed ones.

Only the thread that calls `step` reads or writes parameters, and only there.

Shapes: d parameters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch import Tensor

from starling.gossip.errors import ConfigError
from starling.gossip.mix.borne import Borne
from starling.gossip.vector import finite
from starling.node.engine import fingerprint
from starling.node.rpc import script as messages
from starling.node.rpc.script import VERSION, Closed
from starling.node.script.client import Client
from starling.node.script.correction import Correction, Nowhere
from starling.node.script.flows import Flows
from starling.node.script.handover import Exchanged, Handover, Moving, Replacing
from starling.node.script.hooks import Hooks
from starling.node.script.measuring import Measuring
from starling.node.script.memories import OptimizerMemories
from starling.node.script.parts import Life, Parts, Tally, effective_lr, say
from starling.node.script.processes import Joined
from starling.node.script.script_state import ScriptState

LOADED = 1 << 20  # assumed age of a loaded optimiser state that does not give one
_OVER = messages.Grant(0, 0, 0.0, finished=True)
"""Message: the node has ended without a farewell."""


class Member:
    """A script that is connected to the engine of the node in a folder.

    Attributes:
        measuring: evaluates.
        hooks: around the optimisers' steps.
        client: the connection.
        process: the one that joined.

    Raises ConfigError: the model is not the swarm's; GossipError: the node failed.
    """

    def __init__(self, folder: Path, parts: Parts, life: Life) -> None:
        self._folder, self._parts, self._life = folder, parts, life
        self._parameters = parts.parameters
        self.measuring = Measuring(parts.model, parts.evaluate)
        self._kept = ScriptState(folder, parts.state)
        self.client = self._connected()
        welcome = self.client.welcome
        self.measuring.metric = welcome.metric
        flows = Flows() if welcome.corrects else None
        memories = OptimizerMemories(parts.optimizers, parts.parameters) if welcome.memories else None
        self._exchanged = Exchanged(parts.parameters, self.client.vectors, memories, flows)
        self._handover: Handover = Moving(self._exchanged) if welcome.ahead else Replacing(self._exchanged)
        self._ahead = welcome.ahead
        self._is_given = False  # whether the script's half was given to the engine, until a grant is taken
        self._anew = False  # another engine begins
        correction: Correction = Nowhere() if flows is None else flows
        self.hooks = Hooks(parts.optimizers, parts.parameters, correction)
        self.process = Joined()
        self._grant: messages.Grant | None = None  # None: not begun
        self._own: Mapping[str, Any] = {}  # of `load_state_dict`
        self._tally = Tally()

    @property
    def grant(self) -> messages.Grant:
        """Return the current grant; at first wait until training begins, and install the swarm's parameters."""
        if self._grant is None:
            due = self.client.welcome.round
            restored = None if self._own else self._kept.restore(due)
            if restored is not None and restored < due:
                say(f"the state of round {restored} was loaded, the node is in round {due}: nothing newer was saved when the script ended")
            memories = self._exchanged.memories
            if memories is not None and any(each.state for each in self._parts.optimizers):
                memories.steps = LOADED
            grant = self._granted(wait=True)
            assert grant is not None
            self._grant = grant
            if grant.finished:
                say(f"the node in {self._folder} has no round to do: its swarm has finished, or it leaves")
            own, self._own = self._own, {}
            stays = own.get("round") == grant.round
            self._handover.begin(grant, parameters=not stays)
            if stays and self._exchanged.flows is not None and own.get("known"):
                self._exchanged.flows.known = Borne(*own["known"])
            self._keep(grant)
            self._tally = Tally()
            self._tally.steps = own["steps"] if stays else 0
        return self._grant

    @property
    def has_finished(self) -> bool:
        """Return whether the engine has said that no round follows."""
        return self._grant is not None and self._grant.finished

    def step(self, loss: Tensor | float | None) -> bool:
        stepped = self.hooks.took_step()
        if self._grant is None:  # a step before the swarm's parameters arrived does not count
            _ = self.grant
            return False
        if self._grant.finished:
            raise ConfigError("the swarm has finished: leave the loop when swarm.finished is true")
        if self._is_given and not self._ahead:  # the wait at the round's end was interrupted: the mixed model replaces later steps
            return self._taken(self._granted(wait=True))
        if not stepped:
            return False
        self._tally.note(loss)
        if self._exchanged.memories is not None:
            self._exchanged.memories.steps += 1
        return self._tally.steps >= self._grant.steps and self._end_round(self._grant)

    def state_dict(self) -> dict[str, Any]:
        place = {"round": self.grant.round, "steps": self._tally.steps}
        return place if self._exchanged.flows is None else {**place, "known": [*self._exchanged.flows.known]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._grant is not None:
            raise ConfigError("load_state_dict: call it before the first step and before swarm.finished, swarm.round and swarm.lr()")
        if not {"round", "steps"} <= state.keys():
            raise ConfigError(f"load_state_dict: needs round and steps, as state_dict() gives them, got {sorted(state)}")
        self._own = dict(state)

    def close(self, *, part: bool = True) -> None:
        """Remove the hooks, give the engine the steps of an unfinished round if `part`, store the state, and disconnect."""
        self.hooks.close()
        if self.process.is_elsewhere:
            return
        grant = self._grant
        if grant is not None and not grant.finished:
            with suppress(ConfigError, Closed):  # steps that cannot be given are lost, as when a script is killed
                if part and self._tally.steps and not self._is_given:
                    self._give(grant)
                self._kept.write(grant.round)
        self.client.close()

    def _connected(self) -> Client:
        layout = self._parameters.layout
        frozen = fingerprint.base(self._parts.model)
        hello = messages.Hello(VERSION, os.getpid(), layout.names, layout.shapes, frozen, self.measuring.is_asked)
        return Client(self._folder, hello, layout, self._life, say)

    def _end_round(self, grant: messages.Grant) -> bool:
        """Send the script's values and install the engine's as soon as they are ready -> whether they were."""
        if self._is_given and not self._taken(self._granted(wait=self._tally.steps >= self._ahead * grant.steps)):
            return False
        if self.grant.finished:
            return True
        self._give(grant)
        return (self._ahead > 0 and not self._is_last(grant)) or self._taken(self._granted(wait=True))

    def _is_last(self, grant: messages.Grant) -> bool:
        """Return whether no round follows, so that there are no steps to overlap with its exchanges."""
        rounds = self.client.welcome.rounds
        return rounds > 0 and self._ahead == 1 and grant.round + 1 >= rounds

    def _give(self, grant: messages.Grant) -> None:
        """Hand over the steps done since the last time. Raises ConfigError: the model cannot be given."""
        self._parameters.check_same()
        self._parameters.check_trained()
        report = self._handover.give()
        if not finite(self.client.vectors.script.x):
            raise ConfigError(
                f"the model is no longer finite since a step of round {grant.round}: it is not sent to peers; the state of round "
                f"{grant.round} is in {self._folder}"
            )
        tally, self._tally = self._tally, Tally()
        seconds = time.monotonic() - tally.began
        said = messages.Stepped(
            tally.steps, tally.mean, effective_lr(self.hooks.rate, self._parts.optimizers), seconds, report.age, report.decays, report.known
        )
        with suppress(Closed):  # a closed connection is noticed when a grant is read
            self.client.send(said)
        self._is_given = True

    def _taken(self, grant: messages.Grant | None) -> bool:
        """Install a grant's values, if there is one."""
        if grant is None:
            return False
        before = 0 if self._grant is None else self._grant.round
        self._grant, self._is_given, anew, self._anew = grant, False, self._anew, False
        if grant is _OVER:
            self._grant = replace(_OVER, round=before)
            say(f"the node has left in round {before}")
            return True
        if grant.finished:
            self._parameters.write(self.client.vectors.engine.x)
        elif anew:
            self._handover.begin(grant, parameters=True)
        else:
            self._handover.take(grant, self._tally.steps)
        self._keep(grant)
        if not self._ahead:
            self._tally = Tally()
        return True

    def _granted(self, *, wait: bool) -> messages.Grant | None:
        """Return the next grant, and evaluate before it if requested; None: there is none yet."""
        while wait or self.client.ready:
            try:
                match self.client.receive():
                    case messages.Measure(round=number):
                        if not self._ahead:
                            self._parameters.write(self.client.vectors.engine.x)
                        self.client.send(self.measuring.measured(number))
                    case messages.Grant() as grant:
                        return grant
            except Closed:
                if self._life.is_over():
                    return _OVER
                self._reconnect()
                wait = True
        return None

    def _keep(self, grant: messages.Grant) -> None:
        if grant.keep >= 0:
            self._kept.write(grant.keep)

    def _reconnect(self) -> None:
        """Connect to the node's next engine, which continues from its checkpoint. Raises GossipError: the node failed."""
        say("the node's engine was lost; training goes on from its checkpoint")
        self.client = self._connected()
        self._exchanged.vectors, self._anew = self.client.vectors, True
