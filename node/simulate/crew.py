"""A crew's engines in one process, without daemons and lines: for measurements, and to compare with one machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torch import Tensor, cat

from starling.gossip.errors import ConfigError
from starling.gossip.pipeline.stage import Apply, Command, Compute, Part, Pass, Step, fine, shortened
from starling.node.config.schema import Manifest
from starling.node.engine.worker import Worker
from starling.node.rpc import calls


class InlineCrew:
    """All stages of a crew, run in one process. Raises ConfigError: the manifest cannot be used.

    Attributes:
        bytes: payload bytes of activations, labels and gradients sent between stages so far.
        forward: of these, bytes of activations.
    """

    def __init__(self, manifest: Manifest, number: int = 0, on_the_way: Callable[[Pass], Pass] = lambda frame: frame) -> None:
        """`on_the_way` may change what is sent."""
        self._manifest, self._number, self._on_the_way = manifest, number, on_the_way
        self.engines = [Worker() for _ in range(manifest.crew.stages)]
        self.steps, self.bytes, self.forward = 0, 0, 0
        for stage, engine in enumerate(self.engines):
            opened = engine.handle(calls.Open(manifest, "", 0, "cpu", 1, "", f"stage {stage}", stage=stage))
            if isinstance(opened, calls.Refused):
                raise ConfigError(opened.reason)

    @property
    def vector(self) -> Tensor:
        """Return (d,) the whole model, stage after stage."""
        return cat([engine.vector for engine in self.engines])

    def step(self, round: int = 0) -> float:
        """Do one local step; return its loss. Raises ValueError: a stage refused its input, with its reason."""
        parts = self._through(False, self._manifest.crew.micro_batches)
        loss, scale = sum(part.loss for part in parts), shortened(parts, self._manifest.optimizer.clip_norm)
        self.steps += 1
        for engine in self.engines:
            engine.handle(calls.Finish(round, scale, loss, fine(parts), self.steps))
        return loss

    def evaluate(self, batches: int) -> float:
        """Return the metric over the first held-out batches."""
        last = self._through(True, batches)[-1]
        for engine in self.engines:
            engine.handle(calls.Abandon())
        return last.value / last.samples

    def _through(self, evaluate: bool, count: int) -> tuple[Part, ...]:
        section, n = self._manifest.crew, len(self.engines)
        cores = [Step(stage, n, count, section.warm_up) for stage in range(n)]
        todo: deque[tuple[int, Command]] = deque((stage, it) for stage, core in enumerate(cores) for it in core.begin())
        parts: tuple[Part, ...] = ()
        while todo:
            stage, command = todo.popleft()
            core, engine = cores[stage], self.engines[stage]
            if isinstance(command, Compute) and evaluate and command.way == "B":
                todo.extend((stage, it) for it in core.computed(b""))
            elif isinstance(command, Compute):
                reply = engine.handle(_call(self._number, self.steps, command, evaluate))
                if not isinstance(reply, calls.Advanced):
                    raise ValueError(getattr(reply, "reason", reply))
                todo.extend((stage, it) for it in core.computed(reply.payload, reply.labels))
            elif isinstance(command, Pass):
                self.bytes += len(command.payload) + len(command.labels)
                self.forward += len(command.payload) if command.way == "F" else 0
                sent = self._on_the_way(command)
                todo.extend((sent.to, it) for it in cores[sent.to].arrived(sent.way, sent.micro, sent.payload, sent.labels))
            elif isinstance(command, Apply):
                parts = command.parts
            else:
                summed = engine.handle(calls.Summary())
                assert isinstance(summed, calls.Summed)
                part = Part(summed.squares, summed.loss, summed.value, summed.samples, summed.fine)
                todo.extend((to, it) for to in range(n) for it in cores[to].part(stage, part))
        return parts


def _call(crew: int, step: int, task: Compute, evaluate: bool) -> calls.Request:
    if task.way == "F":
        return calls.Advance(crew, step, task.micro, task.payload, task.labels, evaluate)
    return calls.Retreat(crew, step, task.micro, task.payload)
