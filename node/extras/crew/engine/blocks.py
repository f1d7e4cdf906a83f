"""The blocks of a stage as a module on its device, and the evaluation of held-out micro-batches."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.vector import squares
from starling.node.engine.numerics import seeded
from starling.node.extras.crew.engine.inputs import Inputs
from starling.node.extras.crew.engine.outputs import Outputs, Sent


class Blocks:
    """A module on a device; `gradient` returns (d,), bound to its parameters. `remote`: its input comes from a peer."""

    def __init__(self, module: nn.Module, device: str, gradient: Callable[[], Tensor], *, remote: bool) -> None:
        self._module, self._device, self._gradient, self._remote = module, device, gradient, remote

    def begin(self) -> None:
        """Start a step with a zero gradient."""
        self._module.train()
        self._gradient().zero_()

    def squares(self) -> float:
        """Return the sum of the gradient's squares."""
        return squares(self._gradient())

    def evaluate(self) -> None:
        """Set evaluation mode."""
        self._module.eval()

    def __call__(self, x: Tensor, seed: int) -> Tensor:
        """Compute (m, …) from (m, …); layers draw from `seed`. Raises RemoteProtocolError: a peer's does not fit the blocks."""
        try:
            with seeded(seed, self._device):
                output: Tensor = self._module(x.to(self._device))
        except (RuntimeError, ValueError, IndexError) as error:
            if not self._remote:
                raise
            raise RemoteProtocolError("", "activation_bad_shape") from error
        return output


class Evaluation:
    """Evaluates held-out micro-batches through a stage, without gradients."""

    def __init__(self, blocks: Blocks, inputs: Inputs, outputs: Outputs) -> None:
        self._blocks, self._inputs, self._outputs = blocks, inputs, outputs

    @torch.no_grad()
    def advance(self, number: int, payload: bytes, labels: bytes) -> Sent:
        """Compute a forward pass; return payload and labels for the next stage. Raises RemoteProtocolError: the input does not fit."""
        self._blocks.evaluate()
        given = self._inputs.held_out(number, payload, labels)
        return self._outputs.held_out(self._blocks(given.x, 0), given)
