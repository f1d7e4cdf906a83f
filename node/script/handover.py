"""Hand a script's values to the engine after local steps, and install mixed ones: by `Replacing` or `Moving`, chosen once.

    Replacing   the script waits for its engine, whose values replace the script's
    Moving      the script goes on meanwhile, and what exchanges changed is added to the values that it has by then

Shapes: d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from starling.gossip.mix.borne import Borne, merged
from starling.node.rpc import script as messages
from starling.node.rpc.shared_vectors import SharedVectors
from starling.node.script.flows import Flows
from starling.node.script.memories import OptimizerMemories
from starling.node.script.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Report:
    """Report to the engine about the vectors in the script's half, as in `starling.node.rpc.script.Stepped`."""

    age: int = 0
    decays: tuple[messages.Decay, ...] | None = None
    known: tuple[float, ...] = ()


@dataclass(slots=True)
class Exchanged:
    """The parts of a script that are exchanged with the engine.

    Args:
        parameters: of its model.
        vectors: shared with the engine.
        memories: of its optimisers; None: they are not exchanged.
        flows: the correction of its gradients; None: they are not corrected.
    """

    parameters: Parameters
    vectors: SharedVectors
    memories: OptimizerMemories | None
    flows: Flows | None

    def replace(self, grant: messages.Grant) -> None:
        """Replace parameters and memories by those of the engine's half."""
        engine = self.vectors.engine
        self.parameters.write(engine.x)
        if self.memories is not None and grant.age:
            self.memories.write(engine.mean, engine.square, grant.age)

    def report(self) -> Report:
        """Copy the optimisers' state to the script's half -> a report on it and on the correction."""
        known = () if self.flows is None else tuple(self.flows.known)
        decays = None if self.memories is None else self.memories.decays()
        if self.memories is None or decays is None:
            return Report(known=known)
        half = self.vectors.script
        self.memories.read(half.mean, half.square)
        sent = tuple(messages.Decay(each.where.start, each.where.stop, each.mean, each.square) for each in decays)
        return Report(self.memories.age(), sent, known)


class Handover(Protocol):
    """Transfers values between a script and its engine."""

    def begin(self, grant: messages.Grant, *, parameters: bool) -> None:
        """Install the first grant's values; without `parameters`, only the correction: the script has a checkpoint of its own."""

    def give(self) -> Report:
        """Write the values to the script's half."""

    def take(self, grant: messages.Grant, steps: int) -> None:
        """Install a later grant's values, `steps` local steps after `give`."""


class Replacing:
    """Hands over parameters and memories as they are, and replaces them. Satisfies `Handover`."""

    def __init__(self, exchanged: Exchanged) -> None:
        self._exchanged = exchanged

    def begin(self, grant: messages.Grant, *, parameters: bool) -> None:
        exchanged = self._exchanged
        if parameters:
            exchanged.replace(grant)
        if exchanged.flows is not None:
            exchanged.flows.begin(exchanged.vectors.engine.correction, grant.known, active=grant.flows)

    def give(self) -> Report:
        """Copy parameters and memories."""
        self._exchanged.parameters.read(self._exchanged.vectors.script.x)
        return self._exchanged.report()

    def take(self, grant: messages.Grant, steps: int) -> None:
        self.begin(grant, parameters=True)


class Moving:
    """Hands over values and adds differences to them. The script's half holds what `give` gave until the next. Satisfies `Handover`."""

    def __init__(self, exchanged: Exchanged) -> None:
        self._exchanged = exchanged
        self._c = torch.zeros_like(exchanged.vectors.engine.correction)  # a separate copy, as the engine writes its own while this is used
        self._is_current = False  # whether the script's half has the current parameters
        self._reported = Borne()

    def begin(self, grant: messages.Grant, *, parameters: bool) -> None:
        if parameters:
            self._exchanged.replace(grant)
        self._correct(grant, Borne(*grant.known) if grant.known else Borne())

    def give(self) -> Report:
        """Copy parameters and memories."""
        if not self._is_current:
            self._exchanged.parameters.read(self._exchanged.vectors.script.x)
        self._is_current = False
        report = self._exchanged.report()
        self._reported = Borne(*report.known) if report.known else Borne()
        return report

    def take(self, grant: messages.Grant, steps: int) -> None:
        """Add the differences of the halves, and update the script's half, which is given next."""
        exchanged = self._exchanged
        script, engine, memories = exchanged.vectors.script, exchanged.vectors.engine, exchanged.memories
        exchanged.parameters.move(script.x, engine.x)
        self._is_current = True
        if memories is not None and grant.age and memories.decays() is not None:
            memories.carry((engine.mean, engine.square), (script.mean, script.square), steps)
        if exchanged.flows is not None and grant.known:
            self._correct(grant, merged(exchanged.flows.known, self._reported, Borne(*grant.known)))

    def _correct(self, grant: messages.Grant, known: Borne) -> None:
        flows = self._exchanged.flows
        if flows is None:
            return
        if grant.flows:
            self._c.copy_(self._exchanged.vectors.engine.correction)
        flows.begin(self._c, known, active=grant.flows)
