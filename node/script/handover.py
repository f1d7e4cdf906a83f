"""What a script gives to its engine after local steps, and what it takes over: by `Replacing` or `Moving`, chosen once.

    Replacing   the script waits for its engine, and what it gets replaces what it has
    Moving      the script goes on meanwhile, and what exchanges did is added to what it has by then

Shapes: d parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from starling.gossip.mix.borne import Borne, merged
from starling.gossip.mix.memories import Decay, carry
from starling.node.rpc import script as messages
from starling.node.rpc.shared_vectors import SharedVectors
from starling.node.script.flows import Flows
from starling.node.script.memories import OptimizerMemories
from starling.node.script.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Given:
    """What goes with parameters to the engine."""

    age: int = 0
    decays: tuple[messages.Decay, ...] | None = None
    known: tuple[float, ...] = ()


@dataclass(slots=True)
class Held:
    """Of a script.

    Args:
        parameters: of its model.
        vectors: shared with the engine.
        memories: of its optimisers, where they are exchanged.
        flows: by which its gradients are corrected, where they are.
    """

    parameters: Parameters
    vectors: SharedVectors
    memories: OptimizerMemories | None
    flows: Flows | None

    def remembered(self) -> Given:
        """Write what the optimisers remember to the script's half, and return what is to be said of it and of the correction."""
        known = () if self.flows is None else tuple(self.flows.known)
        decays = None if self.memories is None else self.memories.decays()
        if self.memories is None or decays is None:
            return Given(known=known)
        half = self.vectors.script
        self.memories.read(half.mean, half.square)
        told = tuple(messages.Decay(each.where.start, each.where.stop, each.mean, each.square) for each in decays)
        return Given(self.memories.age(), told, known)


class Handover(Protocol):
    """Between a script and its engine."""

    def begin(self, grant: messages.Grant, *, parameters: bool) -> None:
        """Take over what the first grant gives; `parameters`: with those, and memories, which else are those of the script's checkpoint."""

    def give(self) -> Given:
        """Write what the script has to its half."""

    def take(self, grant: messages.Grant, steps: int) -> None:
        """Take over what a later grant gives, so many local steps after `give`."""


class Replacing:
    """Satisfies `Handover`."""

    def __init__(self, held: Held) -> None:
        self._held = held

    def begin(self, grant: messages.Grant, *, parameters: bool) -> None:
        """Replace what the script has."""
        held = self._held
        engine = held.vectors.engine
        if parameters:
            held.parameters.write(engine.x)
        if parameters and held.memories is not None and grant.age:
            held.memories.write(engine.mean, engine.square, grant.age)
        if held.flows is not None:
            held.flows.begin(engine.correction, grant.known, active=grant.flows)

    def give(self) -> Given:
        """Copy parameters and memories."""
        self._held.parameters.read(self._held.vectors.script.x)
        return self._held.remembered()

    def take(self, grant: messages.Grant, steps: int) -> None:
        """Replace what the script has."""
        self.begin(grant, parameters=True)


class Moving:
    """Satisfies `Handover`. The script's half holds what was given until it is given anew."""

    def __init__(self, held: Held) -> None:
        self._held = held
        engine = held.vectors.engine
        self._c = torch.zeros_like(engine.correction)  # the engine writes its own while this is used
        self._is_given = False  # the script's half has the parameters as they are
        self._memory = torch.empty_like(engine.mean), torch.empty_like(engine.square)
        self._told = Borne()

    def begin(self, grant: messages.Grant, *, parameters: bool) -> None:
        """Replace what the script has."""
        held = self._held
        engine = held.vectors.engine
        if parameters:
            held.parameters.write(engine.x)
        if parameters and held.memories is not None and grant.age:
            held.memories.write(engine.mean, engine.square, grant.age)
        self._correct(grant, Borne(*grant.known) if grant.known else Borne())

    def give(self) -> Given:
        """Copy parameters and memories."""
        if not self._is_given:
            self._held.parameters.read(self._held.vectors.script.x)
        self._is_given = False
        given = self._held.remembered()
        self._told = Borne(*given.known) if given.known else Borne()
        return given

    def take(self, grant: messages.Grant, steps: int) -> None:
        """Add the differences of the halves. What is given next is what there is then."""
        held = self._held
        script, engine = held.vectors.script, held.vectors.engine
        held.parameters.move(script.x, engine.x)
        self._is_given = True
        memories = held.memories
        decays: Sequence[Decay] | None = None if memories is None else memories.decays()
        if memories is not None and decays is not None and grant.age:
            memories.read(*self._memory)
            age = memories.age()
            carry(*self._memory, (engine.mean, engine.square), (script.mean, script.square), decays, steps, age)
            memories.write(*self._memory, age)
        if held.flows is not None and grant.known:
            self._correct(grant, merged(held.flows.known, self._told, Borne(*grant.known)))

    def _correct(self, grant: messages.Grant, known: Borne) -> None:
        held = self._held
        if held.flows is None:
            return
        if grant.flows:
            self._c.copy_(held.vectors.engine.correction)
        held.flows.begin(self._c, known, active=grant.flows)
