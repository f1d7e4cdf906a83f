"""The replica of a script's model, without its module. Satisfies `starling.node.engine.local.trainer.Trainer`.

What is known of the model are names and shapes of its parameters, and the values that all nodes began with. What the script makes of them
comes by `take`.

Shapes: d parameters.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from starling.gossip.api import Losses
from starling.gossip.errors import ConfigError
from starling.gossip.mix.memories import Decay, MemoryExchange
from starling.gossip.mix.moments import averages_memories
from starling.gossip.replica import Replica
from starling.gossip.vector import Layout, finite
from starling.node.config import script
from starling.node.config.large import LARGE
from starling.node.engine import tensor_file
from starling.node.engine.compression import memory_codec
from starling.node.engine.exchange.api import Handlers
from starling.node.engine.local.rates import OwnRates, Rates
from starling.node.engine.local.replicas import replica_around
from starling.node.engine.local.trainer import TrainerFacts, TrainerFigures
from starling.node.engine.memory_pieces import view_of
from starling.node.engine.script.beginning import beginning_of
from starling.node.engine.script.memory import ScriptMemory
from starling.node.engine.side_state import named
from starling.node.rpc.calls import Open
from starling.node.rpc.shared_vectors import Half

_X, _MEAN, _SQUARE, _AGE, _KNOWN = "x", "memory.mean", "memory.square", "memory.age", "known."


class ModelCopy:
    """A copy of the model at one moment, by the names of its parameters. Satisfies `starling.node.engine.best.Model`."""

    def __init__(self, layout: Layout, x: Tensor) -> None:
        self._layout, self._x = layout, x.clone()

    def entries(self) -> dict[str, Tensor]:
        """Return the parameters by name, not copied."""
        return shaped(self._x, self._layout)

    def facts(self) -> Mapping[str, str]:
        """Return the facts for a file: buffers and untrained parameters are left out."""
        return {"holds": "trained"}


def shaped(x: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Return views of a vector (d,), one for each parameter, by name."""
    places = zip(layout.names, layout.shapes, layout.offsets, layout.offsets[1:], strict=False)
    return {name: x[begin:end].view(shape) for name, shape, begin, end in places}


class ScriptTrainer:
    """Holds the replica that a script trains.

    Attributes:
        layout: of the model.
        memory: of the script's optimisers; None: it is not exchanged.
        facts, replica, rates: as of `Trainer`.
        steps: local steps that scripts have done.
        samples: of training data that the script said it has.
    """

    def __init__(self, open_request: Open) -> None:
        """Make the replica. Raises ConfigError: the start file or the mixing algorithm cannot be used."""
        begun = beginning_of(open_request)
        self.layout = begun.layout
        self.replica: Replica = replica_around(open_request, begun.values().clone(), begun.layout, begun.values)
        self.facts = TrainerFacts(begun.metric, begun.higher_is_better, samples=0, device="cpu", large=self.layout.dim > LARGE)
        self.rates = (OwnRates if script.trains(open_request.manifest) else Rates)(open_request.manifest)
        self.steps = self.undone = 0
        self._notes: list[str] = []
        self._unknown = False  # whether the owner was told of an unknown optimiser
        self.memory = self._remembered(open_request)

    def _remembered(self, open_request: Open) -> ScriptMemory | None:
        replica, manifest = self.replica, open_request.manifest
        if not averages_memories(manifest):
            return None
        view = view_of(replica.mixer, replica.parameters.numel(), replica.form.numel())
        memory = ScriptMemory(self.layout.dim, self.layout.dtype, view)
        home = bool(open_request.privacy.exchange_noise)
        if home:
            self._notes.append("privacy.exchange_noise: the optimiser's memory stays at home, as only models are sent with noise")
        replica.remembered = MemoryExchange(memory, memory_codec(manifest), home=home)
        return memory

    def take(self, x: Tensor, *, since: Tensor | None) -> None:
        """Store the script's parameters (d,); `since` (d,): those that it began with, where the replica may have changed meanwhile.

        Raises ValueError: they are not finite, and nothing has changed.
        """
        if not finite(x):
            raise ValueError("the script's parameters are not finite")
        with torch.no_grad():
            if since is None:
                self.replica.x.copy_(x)
            else:
                self.replica.x.add_(x - since)

    def remember(self, given: Half, age: int, decays: Sequence[Decay] | None, steps: int, *, since: Half | None) -> None:
        """Store the script's optimiser state after so many local steps; None: it is not known.

        `since`: as of `take`.
        """
        memory = self.memory
        if memory is None:
            return
        if decays is None and steps and not self._unknown:
            self._unknown = True
            self.note("mix: what this optimiser remembers is not known by name; models alone are averaged, as with mix=dsgd")
        if decays is None or age == 0 or not (finite(given.mean) and finite(given.square)):
            memory.told(given.mean, given.square, 0, ())
            return
        memory.clock += steps
        if since is None:
            memory.told(given.mean, given.square, age, decays)
        else:
            memory.moved((since.mean, since.square), given.mean, given.square, age, decays, steps)

    def note(self, line: str) -> None:
        """Add a line for the owner to the next figures."""
        self._notes.append(line)

    @property
    def schema(self) -> bytes:
        return self.layout.digest

    @property
    def step(self) -> Callable[[int], float | None]:
        """Raise ConfigError: a script does the steps."""
        raise ConfigError("task.kind: local steps of a script are done by the script")

    def handlers(self) -> Handlers:
        return {}

    def losses(self) -> Losses | None:
        """Return None: this process has no model to compute losses."""
        return None

    def figures(self) -> TrainerFigures:
        return TrainerFigures(None, "", None)

    def take_notes(self) -> tuple[str, ...]:
        """Return lines for the owner."""
        notes, self._notes = tuple(self._notes), []
        return notes

    def model(self) -> ModelCopy:
        """Return the current model."""
        return ModelCopy(self.layout, self.replica.settled)

    def exported(self) -> dict[str, Tensor]:
        """Return a copy of the parameters by name."""
        return self.model().entries()

    def file_facts(self) -> Mapping[str, str | int]:
        """Return the facts for a file of the model."""
        return {"holds": "trained"}

    def release_gradient(self) -> None: ...

    def trim(self) -> None: ...

    def mark(self) -> None:
        """Do nothing: parameters that are not finite are not taken."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the model, the optimisers' state, and the mixing algorithm's state."""
        memory = self.memory
        kept = {} if memory is None or not memory.age else {_MEAN: memory.mean, _SQUARE: memory.square, _AGE: torch.tensor(memory.age)}
        return {_X: self.replica.settled, **kept, **{_KNOWN + peer: each for peer, each in self.replica.histories().items()}}

    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Resume from a checkpoint. Raises ValueError: it is another model's."""
        self.replica.check(tensors.get(_X))
        self.replica.install(tensors[_X])
        self.steps = steps
        self.replica.recall(named(tensors, _KNOWN))
        tensor_file.release(tensors)

    def replaced(self) -> None:
        """Delete the state that belongs to another model."""
        if self.memory is not None:
            self.memory.forget()

    def install(self, offered: Tensor, round: int) -> None:
        """Replace the model by an offered one."""
        x = self.replica.scope.whole(offered, self.replica.x)
        self.replica.check(x)
        self.replaced()
        self.rates.joined(round)
        self.replica.install(x)

    def side_state(self) -> dict[str, Tensor]:
        return {}

    def check_side_state(self, tensors: dict[str, Tensor]) -> None:
        """Raise ValueError if there is anything besides the model."""
        if tensors.keys() != {_X}:
            raise ValueError("holds more than the model")

    def take_side_state(self, given: Sequence[Mapping[str, Tensor]]) -> None: ...

    def close(self) -> None: ...
