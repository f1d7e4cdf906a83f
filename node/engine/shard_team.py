"""What all ranks of an island do alike where each has a part of the model (`starling.node.engine.shards`).

Shapes: d parameters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from starling.gossip.errors import ConfigError
from starling.gossip.vector import Layout, as_named
from starling.node.engine import shards
from starling.node.engine.numerics import Gradients
from starling.node.engine.parts import out_of_memory
from starling.node.engine.team import meet
from starling.node.rpc import calls
from starling.node.tasks.api import Task
from starling.node.tasks.batches import part, samples
from starling.node.tasks.trees import moved

REHEARSAL = -1  # a step with the batch by which tasks are tried


@dataclass(frozen=True, slots=True)
class SharedModel:
    """What ranks cut among them.

    Attributes:
        task: whose model it is.
        model: whole, on the CPU, to be cut in place.
        layout: of its trainable parameters.
        memory: descriptor from `shards.reserve` with these and their gradient, to be closed.
    """

    task: Task
    model: nn.Module
    layout: Layout
    memory: int


class ShardTeam:
    """One rank's part. Made when all are started."""

    def __init__(self, rank: int, opening: calls.Open, meeting: str, shared: SharedModel) -> None:
        """`opening` with the device. Raises ConfigError: the model cannot be cut so."""
        meet(rank, opening.ranks, meeting, opening.device)
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 — takes a second

        task, model, layout = shared.task, shared.model, shared.layout
        numerics, device = opening.numerics, opening.device
        self._rank, self._ranks, self._device = rank, opening.ranks, device
        self._whole_batches = opening.parallel == "tensor"
        self._micro_batch = numerics.micro_batch
        self._order = torch.zeros(3, dtype=torch.int64, device=device)
        self._loss = torch.zeros(1, dtype=torch.float64, device=device)
        self.x, self.gradient = shards.vectors(shared.memory, layout)
        os.close(shared.memory)
        mesh = init_device_mesh(device, (opening.ranks,))
        plan: shards.Plan = {}
        if self._whole_batches:
            plan = shards.plan_of(task, model, opening.ranks)
            root = shards.split(task, model, mesh, device, plan)
        else:
            root = shards.shard(task, model, mesh, device)
        self._gradients = Gradients(numerics, task, model, device, loss=lambda _, batch: root(batch))
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._cuts = {name: shards.cut_of(name, each, plan) for name, each in self._parameters.items()}
        self._x, self._g = (as_named(each, layout) for each in (self.x, self.gradient))
        self.buffers = list(model.buffers())
        model.train()

    @property
    def held(self) -> int:
        """Trainable parameters that are stored here."""
        return sum(shards.local(each).numel() for each in self._parameters.values())

    def order(self, step: int = 0, seed: int = 0, exponent: int = 0) -> tuple[int, int, int]:
        """The local step to compute, the seed of its layers and log2 of the loss's scale, given by rank 0."""
        self._order.copy_(torch.tensor([step, seed, exponent]))
        dist.broadcast(self._order, 0)
        given: list[int] = self._order.tolist()
        return given[0], given[1], given[2]

    def compute(self, batch: Any, seed: int, exponent: int) -> float:
        """After an order: this rank's part of x is read, and its part of the gradient written -> at rank 0 the batch's loss.

        Raises ConfigError: memory runs out, for which batches are not halved, since all ranks would have to do so.
        """
        averaged = [each for each in self.buffers if each.is_floating_point()]
        for each in averaged:
            dist.broadcast(each, 0)
        self._load()
        if self._gradients.scale is not None:
            self._gradients.scale.scale = 2.0**exponent
        parts = list(self._parts(moved(batch, self._device)))
        try:
            value = self._gradients.add(parts, seed if self._whole_batches else seed + self._rank)
        except Exception as error:
            if out_of_memory(error):
                raise ConfigError(
                    "numerics.micro_batch: a batch's part does not fit into the memory of a rank, and is not halved by itself with "
                    f"parallel=fsdp or tensor; got {self._micro_batch or 'none'}, try `--set numerics.micro_batch=1`, or more ranks"
                ) from error
            raise
        self._store()
        if not self._whole_batches:
            weight = sum(share for _, share in parts)
            for each in averaged:
                each.mul_(weight)
                dist.reduce(each, 0)
        self._loss.fill_(0.0 if self._whole_batches and self._rank else value)
        dist.reduce(self._loss, 0)  # after this all have written
        return float(self._loss)

    def _parts(self, batch: Any) -> Iterator[tuple[Any, float]]:
        count = samples(batch)
        if count is None:
            yield batch, 1.0
            return
        place = (0, 1) if self._whole_batches else (self._rank, self._ranks)
        for begin, end, share in shards.passes(count, *place, self._micro_batch):
            yield part(batch, begin, end), share

    def _load(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.grad = None
            cut = self._cuts[name]
            cut.split(shards.local(parameter)).copy_(cut.piece(self._x[name], self._rank, self._ranks))

    def _store(self) -> None:
        for name, parameter in self._parameters.items():
            cut, gradient, placements = self._cuts[name], parameter.grad, getattr(parameter, "placements", None)
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            elif placements is not None:
                gradient = _placed(gradient, placements)
            elif not self._whole_batches:
                dist.all_reduce(gradient)  # of a scalar, which fsdp does not cut
            if cut.axis is not None or self._rank == 0:
                cut.piece(self._g[name], self._rank, self._ranks).copy_(cut.split(shards.local(gradient)))


def _placed(gradient: Any, placements: Any) -> Any:
    """As its parameter is."""
    return gradient if gradient.placements == placements else gradient.redistribute(placements=placements)
