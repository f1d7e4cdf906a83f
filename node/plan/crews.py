"""Crews: how fast machines are that hold consecutive parts of one model, and which of them to put together."""

from __future__ import annotations

from functools import cached_property, lru_cache, partial
from itertools import pairwise

from starling.gossip.pipeline.cut import cut
from starling.gossip.pipeline.schedule import Pipeline, held, predicted, simulated, warm_up
from starling.node.plan import memory
from starling.node.plan.place import place
from starling.node.plan.results import Crew, Stage
from starling.node.plan.schema import World, line

MOST_STAGES = 16
MORE = 2  # stages beyond the least that hold the model, which are tried too


def block_costs(world: World) -> list[float]:
    """Operations of each block in one micro-batch, forward and backward; the head is a part of the last.

    6 for each parameter and token, 6 s² h for causal attention; 8 where activations are computed again.
    """
    model, train = world.model, world.train
    tokens = train.micro_batch * model.sequence
    each = (8.0 if train.recompute else 6.0) * (
        12.0 * model.hidden**2 * tokens + train.micro_batch * float(model.sequence) ** 2 * model.hidden
    )
    head = 6.0 * model.vocab * model.hidden * tokens
    return [each] * (model.layers - 1) + [each + head]


class Crews:
    """The crews of the machines in a plan file."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._costs = block_costs(world)
        self._there = [machine.memory_bytes for machine in world.machine]
        self._needed = lru_cache(maxsize=1 << 16)(self._bytes)

    def among(self, able: list[int]) -> tuple[Crew, ...]:
        """Return the crews with the largest sum of steps a second, all of one size, of these machines; none if the model does not fit."""
        least, most = self._fewest(able), min(len(able), MOST_STAGES, self._world.model.layers)
        best: tuple[Crew, ...] = ()
        tried = 0
        for size in range(max(2, least), most + 1):
            orders = place(able, size, self._rate, self._near)
            crews = tuple(crew for order in orders if (crew := self.crew(order)) is not None)
            if sum(1.0 / it.step_s for it in crews) > sum(1.0 / it.step_s for it in best):
                best = crews
            tried += bool(best)
            if tried > MORE:
                break
        return best

    def crew(self, order: tuple[int, ...]) -> Crew | None:
        """Return a crew in that order; None: the model does not fit. Warm-up as far as memory goes."""
        if (ends := self._cut(order)) is None:
            return None
        machines = [self._world.machine[number] for number in order]
        firsts = (0, *ends[:-1])
        pipe, faster = self._pipeline(order, ends, 1.0), self._pipeline(order, ends, 2.0)
        w = self._warm_up(order, ends, pipe)
        stages = tuple(
            Stage(name=machine.name, first=a, end=b, held=keeps, needed_bytes=self._needed(a, b, keeps), memory_bytes=self._there[number])
            for number, machine, a, b, keeps in zip(order, machines, firsts, ends, held(pipe, "1f1b", w), strict=True)
        )
        step_s = _step_s(pipe, w)
        return Crew(
            stages=stages,
            step_s=step_s,
            decides="computing" if pipe.ideal > step_s / 2.0 else "lines",
            step_s_of_twice_the_rates=_step_s(faster, w),
            warm_up=w,
        )

    def _rate(self, order: tuple[int, ...]) -> float:
        """Steps a second; where the model does not fit minus the bytes missing, so that a search gets nearer."""
        missing = self._least_bytes - sum(self._there[number] - self._world.reserve for number in order)
        if missing > 0:
            return -missing
        if (ends := self._cut(order)) is None:
            return -1.0
        pipe = self._pipeline(order, ends, 1.0)
        return 1.0 / _step_s(pipe, self._warm_up(order, ends, pipe))

    def _near(self, a: int, b: int) -> float:
        delay, per_s = line(self._world, a, b)
        return delay + self._activation_bytes / per_s

    def _cut(self, order: tuple[int, ...]) -> tuple[int, ...] | None:
        return cut(self._costs, [self._speed(number) for number in order], partial(self._fits, order, 0))

    def _fits(self, order: tuple[int, ...], w: int, stage: int, first: int, end: int) -> bool:
        n = len(order)
        keeps = min(self._world.train.micro_batches, n - stage + w * (n - 1 - stage))
        return self._needed(first, end, keeps) <= self._there[order[stage]]

    def _warm_up(self, order: tuple[int, ...], ends: tuple[int, ...], pipe: Pipeline) -> int:
        stages = list(zip(range(len(order)), (0, *ends[:-1]), ends, strict=True))
        fit = (w for w in range(warm_up(pipe), 0, -1) if all(self._fits(order, w, *stage) for stage in stages))
        return next(fit, 0)

    def _pipeline(self, order: tuple[int, ...], ends: tuple[int, ...], faster: float) -> Pipeline:
        forward, lines = 1 / 4 if self._world.train.recompute else 1 / 3, []
        parts = zip(order, (0, *ends[:-1]), ends, strict=True)
        seconds = [sum(self._costs[a:b]) / self._speed(number) for number, a, b in parts]
        for a, b in pairwise(order):
            (delay, per_s), (_, back_per_s) = line(self._world, a, b), line(self._world, b, a)
            lines.append((delay, self._activation_bytes / min(per_s, back_per_s) / faster))
        return Pipeline(
            forward=[each * forward for each in seconds],
            backward=[each * (1.0 - forward) for each in seconds],
            delay=[it[0] for it in lines],
            transfer=[it[1] for it in lines],
            micro_batches=self._world.train.micro_batches,
        )

    def _fewest(self, able: list[int]) -> int:
        """Machines without which the parameters alone do not fit; more than there are: all of them do not."""
        left = self._least_bytes
        there = sorted((self._there[number] - self._world.reserve for number in able), reverse=True)
        for count, each in enumerate(there, 1):
            left -= each
            if left <= 0:
                return count
        return len(able) + 1

    def _bytes(self, first: int, end: int, keeps: int) -> int:
        return memory.needed(self._world.model, self._world.train, first, end, keeps, self._world.reserve)

    def _speed(self, number: int) -> float:
        return (self._world.machine[number].tflops or 0.0) * 1e12 * self._world.train.utilisation

    @cached_property
    def _least_bytes(self) -> int:
        return round(memory.bytes_per_parameter(self._world.train) * memory.parameters(self._world.model))

    @cached_property
    def _activation_bytes(self) -> float:
        train, model = self._world.train, self._world.model
        return train.micro_batch * model.sequence * model.hidden * train.activation_bits / 8.0


def _step_s(pipe: Pipeline, w: int) -> float:
    """Return the seconds of a step: by formula if transfers are hidden, by simulation if memory allows too few micro-batches."""
    return predicted(pipe, "1f1b") if w >= warm_up(pipe) else simulated(pipe, "1f1b", w)
