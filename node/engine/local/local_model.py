"""A task's model on this machine: the module whose parameters are views of one vector, its gradient, its buffers, and the data.

Shapes: d parameters.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor, nn

from starling.gossip.rng import generator
from starling.gossip.seeds import derive
from starling.gossip.vector import Layout, bind_gradients, bind_parameters, layout, rebind, release_gradients
from starling.node.config.large import LARGE
from starling.node.config.schema import Manifest
from starling.node.engine import heap
from starling.node.tasks.api import Data, Task
from starling.node.tasks.evaluate import BATCHES, comparing, estimate


class LocalModel:
    """A module bound to a vector x (d,), and the samples it learns from.

    Attributes:
        manifest: the swarm's agreement.
        node: label of this node, which seeds its generators.
        task, data: what is learned; `data` may be replaced by others of the same kind.
        module: the model.
        device: on which it is.
        layout: of its trainable parameters.
        x: (d,) these; the module's are views of it.
        buffers: of the module, by name.
        fresh: makes another module like it at the beginning.
        large: whether copies of it matter.
    """

    def __init__(
        self, manifest: Manifest, node: str, task: Task, data: Data, fresh: Callable[[], nn.Module], device: str
    ) -> None:
        """Raises ValueError: the parameters do not fit one vector."""
        self.manifest, self.node, self.task, self.data, self.device = manifest, node, task, data, device
        self.fresh = fresh
        self.module = fresh()
        self.layout: Layout = layout(self.module)
        self.large = self.layout.dim > LARGE
        self.buffers = dict(self.module.named_buffers())
        self.x = torch.empty(0)
        self._chance = Generator()
        self._shared_gradient: Tensor | None = None  # (d,) memory that ranks of an island write to
        self._gradient: Tensor | None = None  # (d,); None while there are no local steps

    def bind(self) -> None:
        """Move the parameters into x, and begin to train."""
        release_gradients(self.module)  # of a batch that was tried
        self.x = bind_parameters(self.module, self.layout)
        self.module.train()

    def move(self, x: Tensor, gradient: Tensor | None) -> None:
        """Have the parameters, and their gradient unless that is None, in memory (d,) of others, which has their values."""
        self.x, self._shared_gradient = x, gradient
        rebind(self.module, self.layout, x)

    @property
    def gradient(self) -> Tensor:
        """(d,) the vector of which the parameters' gradients are views."""
        if self._shared_gradient is not None:
            return self._shared_gradient
        if self._gradient is None:
            self._gradient = bind_gradients(self.module, self.layout)
        return self._gradient

    def rest(self) -> None:
        """Free what only local steps need."""
        self._gradient = None
        release_gradients(self.module)
        self.trim()

    def trim(self) -> None:
        """Give freed memory back to the system, where the model is so large that it matters."""
        if self.large:
            heap.trim()

    def beginning(self) -> Tensor:
        """Return (d,) the model that all nodes began with."""
        return bind_parameters(self.fresh(), self.layout)

    def batch(self, step: int) -> Any:
        """Return the training batch of local step number `step`, counted from 0."""
        self._chance.manual_seed(derive(self.manifest.seed, "batch", self.node, step))
        return self.data.batch(self.manifest.task.batch_size, self._chance)

    def statistics(self, module: nn.Module) -> Iterator[None]:
        """Estimate a module's normalisation statistics from training data, a batch at a time."""
        size, seed = self.manifest.task.batch_size, self.manifest.seed
        batches = (self.data.batch(size, generator(seed, "statistics", self.node, number)) for number in range(BATCHES))
        return estimate(self.task, module, batches)

    def losses(self, batch: Any, models: Tensor) -> Tensor:
        """Return (…) the losses of models (…, d) on a batch, infinite where one is no number."""
        ours, values = self.x.clone(), []
        with comparing(self.module), torch.no_grad():
            for model in models.reshape(-1, models.shape[-1]):
                self.x.copy_(model)
                loss: Tensor | None = self.task.loss(self.module, batch)
                values.append(ours.new_tensor(math.inf) if loss is None else loss.to(ours.dtype))
        self.x.copy_(ours)
        return torch.stack(values).nan_to_num(math.inf, math.inf).reshape(models.shape[:-1])
