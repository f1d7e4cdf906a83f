"""One stage of a crew: the computation of a local step with its blocks, one micro-batch at a time.

    Inputs      Drawn at the first stage, Received at the others
    Blocks      the stage's part of the model
    Outputs     Forwarded to the next stage, Scored at the last

The daemon says which task is next (`starling.gossip.pipeline.stage`), so that gradients add up in the order of micro-batches, as on one
machine that accumulates the same ones, bit for bit if activations are sent in float32. Nothing changes the model before `finish`.

Shapes: d parameters of this stage, m samples of a micro-batch.
"""

from dataclasses import dataclass

from torch import Tensor

from starling.gossip.compress.activations import codec
from starling.gossip.errors import LocalProtocolError
from starling.gossip.seeds import derive
from starling.node.engine.local.local_model import LocalModel
from starling.node.extras.crew.engine.blocks import Blocks, Evaluation
from starling.node.extras.crew.engine.inputs import Drawn, Inputs, Received
from starling.node.extras.crew.engine.outputs import Forwarded, Outputs, Scored, Sent
from starling.node.extras.crew.engine.place import MicroBatch, Place, Totals
from starling.node.tasks.api import Staged


def stage_of(model: LocalModel, stage: int) -> "Stage":
    """Return a stage, whose blocks are `model`. Raises ConfigError: the data do not fit the codec of activations."""
    task, section = model.task, model.manifest.crew
    assert isinstance(task, Staged)
    place, totals = Place(model.manifest, stage), Totals()
    forward, backward = codec(section.activation), codec(section.gradient, by_chance=True)
    served = codec("bfloat16" if forward.delta else section.activation)
    inputs: Inputs = Received(place, forward, served, backward, totals)
    outputs: Outputs = Forwarded(place, forward, served, backward, totals)
    if stage == 0:
        inputs = Drawn(task, model.data, place, forward)
    if stage == section.stages - 1:
        outputs = Scored(task, place, totals)
    blocks = Blocks(model.module, model.device, lambda: model.gradient, remote=inputs.remote)
    return Stage(place, blocks, inputs, outputs, totals)


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """Tensors of a micro-batch between its forward and its backward pass."""

    x: Tensor  # (m, …) the input
    output: Tensor  # the tensor from which the backward pass starts


class Stage:
    """The computations of a crew's calls at one stage."""

    def __init__(self, place: Place, blocks: Blocks, inputs: Inputs, outputs: Outputs, totals: Totals) -> None:
        self._place, self._blocks, self._inputs, self._outputs, self._totals = place, blocks, inputs, outputs, totals
        self.evaluation = Evaluation(blocks, inputs, outputs)
        self._held: dict[int, _MicroBatch] = {}
        self._begun = False

    @property
    def batches(self) -> int:
        """Return the number of held-out batches at the first stage; 0 at others."""
        return self._inputs.batches

    @property
    def over(self) -> float:
        """Return how many times as long as usual what the last task was given is, if that is too long; else 0."""
        return self._totals.over

    def advance(self, at: MicroBatch, payload: bytes, labels: bytes) -> Sent:
        """Compute a forward pass; return payload and labels for the next stage. Raises RemoteProtocolError: the input does not fit."""
        if not self._begun:
            self._begun = True
            self._blocks.begin()
        self._totals.over = 0.0
        given = self._inputs.training(at, payload, labels)
        output = self._blocks(given.x, derive(self._place.manifest.seed, "layers", *self._place.chance(at)))
        output, sent = self._outputs.training(at, output, given)
        self._held[at.number] = _MicroBatch(given.x, output)
        return sent

    def retreat(self, at: MicroBatch, payload: bytes) -> bytes:
        """Compute the backward pass of a forwarded micro-batch; return the payload for the previous stage.

        Raises RemoteProtocolError: the input does not fit.
        """
        held = self._held.pop(at.number, None)
        if held is None:
            raise LocalProtocolError(f"micro-batch {at.number} is not held")
        self._totals.over = 0.0
        self._outputs.backward(held.output, payload)
        return self._inputs.gradient(held.x, at)

    def summary(self) -> tuple[float, float, float, int, bool]:
        """Return (squares, loss, value, samples, fine) of the step so far; of an evaluation no squares."""
        return self._totals.summary(self._blocks.squares() if self._begun else 0.0)

    def finish(self, *, applied: bool) -> None:
        """End the step at all stages; not `applied`: it had non-finite numbers."""
        self._inputs.finish(applied=applied)
        self._outputs.finish(applied=applied)
        self._clear()

    def abandon(self) -> None:
        """The step was given up, or the crew is another one: what was sent is unknown to the other end."""
        self._inputs.abandon()
        self._outputs.abandon()
        self._clear()

    def _clear(self) -> None:
        self._held, self._begun = {}, False
        self._totals.clear()
