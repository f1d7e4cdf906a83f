"""Swarms of honest nodes: what does the defence of pairs (`starling.robust.distances`) do to them, and what does it cost?

Every case is a scenario in the simulator, for each seed. Figures of a case, sums over seeds, and of `all` cases together:

    c.nodes         node-runs: nodes that exchanged, once each; one that crashed and returned without its memory is another
    c.exchanges     judged, at both ends
    c.shortened     differences of these that were longer than their limit
    c.strikes       that counted against the peer
    c.refusals
    c.longest       the longest difference, in references; none if there never was a reference
    c.final         median of the metric at the end

Where the same is run without the defence as well, by turns in one process, and by rows of one array with the same partners:

    c.final_off     median without the defence
    c.bytes_ratio   bytes sent with it, over those without
    c.cpu_ratio     processor time of a committed exchange and the local steps between two with it, over that without

Runs are kept until all are there, so that a measurement that was cut off goes on.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from unittest.mock import patch

import msgspec
import trio

from benchmarks import facts
from benchmarks.recipes import HonestRecipe
from benchmarks.results import Figures, Run
from starling.node.net.faults import Deliver
from starling.node.simulate import engines, rules, sweep
from starling.node.simulate.schema import Scenario
from starling.node.simulate.virtual.swarm import VirtualSwarm
from starling.robust.distances import Distances, share

MEASURES = ("starling.node.simulate.matrix.distances.Distances", "starling.node.engine.exchange.catalogue.Distances")
COUNTS = ("exchanges", "shortened", "strikes", "refusals")


class Watched(Distances):
    """A node's measure that counts what it said."""

    def __init__(self, made: list[Watched]) -> None:
        super().__init__()
        self.exchanges = self.shortened = self.strikes = self.refusals = 0
        self.longest = 0.0
        made.append(self)

    def met(self, peer, distance, round, progress=None):
        if self.refuses(peer, round):
            return super().met(peer, distance, round, progress)
        reference = self.reference(peer, round)
        self.exchanges += 1
        self.shortened += share(distance, reference) < 1.0
        self.longest = max(self.longest, distance / reference if reference else 0.0)
        far = super().met(peer, distance, round, progress)
        if far is not None:
            self.strikes += 1
            self.refusals += far.refused > 0
        return far


class Sleepers(VirtualSwarm):
    """Whole nodes of which the last `many` sleep from one virtual second until another: they compute nothing, and frames wait."""

    def __init__(self, manifest, *, sleep, rules=(), **keys):
        super().__init__(manifest, rules=[self._waits, *rules], **keys)
        self._from_s, self._until_s, self._many = sleep

    def _waits(self, src, dst, now):
        asleep = {self.nodes[index].peer_id for index in sorted(self.nodes)[-self._many :]}
        return Deliver(self._until_s - now) if self._from_s <= now < self._until_s and asleep & {src, dst} else None

    @asynccontextmanager
    async def running(self, nodes):
        async with super().running(nodes):
            self._nursery.start_soon(self._sleep)
            yield

    async def _sleep(self):
        await trio.sleep_until(self._from_s)
        for index in sorted(self.nodes)[-self._many :]:
            engine = self.nodes[index].node.running.engine
            engine.call = partial(self._late, engine.call)

    async def _late(self, call, request):
        if trio.current_time() < self._until_s:
            await trio.sleep_until(self._until_s)
        return await call(request)


def measure(recipe: HonestRecipe, kept: Path) -> list[Run]:
    """Run every case, in this process, except runs of equal recipe and commit stored in `kept`, which is emptied when all are done."""
    folder = kept / hashlib.sha256(msgspec.json.encode([recipe, facts.gather().commit])).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for case, seed in product(recipe.cases, recipe.seeds):
        for defended in arms(recipe, case, seed):
            path = folder / f"{case}-{seed}-{defended}.json"
            if not path.exists():
                path.write_bytes(msgspec.json.encode(run(recipe, case, seed, defended)))
            runs.append(msgspec.json.decode(path.read_bytes()))
    shutil.rmtree(folder)
    return runs


def arms(recipe: HonestRecipe, case: str, seed: int) -> tuple[bool, ...]:
    """Return with and without the defence: the first is another one from seed to seed, as a first run is slower."""
    if case not in recipe.beside:
        return (True,)
    return (True, False) if seed % 2 else (False, True)


def run(recipe: HonestRecipe, case: str, seed: int, defended: bool) -> Run:
    """Run one case once."""
    before, made, todo = facts.load(), list[Watched](), scenario(recipe, case, seed, defended)
    with ExitStack() as stack:
        for name in MEASURES:
            stack.enter_context(patch(name, lambda: Watched(made)))
        if case in recipe.sleepers:
            swarm = partial(Sleepers, sleep=recipe.sleepers[case])
            stack.enter_context(patch("starling.node.simulate.virtual.run.VirtualSwarm", swarm))
        began = time.process_time()
        outcome = engines.simulate(todo, lambda *_: None)
        cpu_s = time.process_time() - began
    last, met = outcome.rows[-1], [each for each in made if each.exchanges]
    return {
        "case": case,
        "seed": seed,
        "defended": defended,
        "load": [before, facts.load()],
        "nodes": len(met),
        **{name: sum(getattr(each, name) for each in met) for name in COUNTS},
        "longest": max((each.longest for each in met), default=0.0),
        "committed": outcome.counts["committed"],
        "bytes": last.bytes_per_node,
        "final": last.mean,
        "diverged": outcome.diverged,
        "cpu_s": round(cpu_s, 3),
    }


def scenario(recipe: HonestRecipe, case: str, seed: int, defended: bool) -> Scenario:
    """Return the checked scenario of one run."""
    sets = (*recipe.set, *recipe.cases[case], f"simulate.seed={seed}", f"mix.defended={str(defended).lower()}")
    _, cells = sweep.read(facts.ROOT / recipe.scenario, sets)
    rules.check(cells)
    return cells[0].scenario


def figures(recipe: HonestRecipe, runs: list[Run]) -> Figures:
    """Return the figures of the runs."""
    table: Figures = {}
    for case in (*recipe.cases, "all"):
        on, off = ([r for r in runs if case in (r["case"], "all") and r["defended"] is arm] for arm in (True, False))
        table |= {f"{case}.{name}": float(sum(r[name] for r in on)) for name in ("nodes", *COUNTS)}
        table[f"{case}.longest"] = max(r["longest"] for r in on) or None
        if case == "all":
            continue
        table[f"{case}.final"] = median(r["final"] for r in on)
        if off:
            table[f"{case}.final_off"] = median(r["final"] for r in off)
            table[f"{case}.bytes_ratio"] = fmean(r["bytes"] for r in on) / fmean(r["bytes"] for r in off)
            table[f"{case}.cpu_ratio"] = _each(on) / _each(off)
    return table


def _each(runs: list[Run]) -> float:
    """Return the processor time of an exchange."""
    return sum(r["cpu_s"] for r in runs) / sum(r["committed"] for r in runs)
