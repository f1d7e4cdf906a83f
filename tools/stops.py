"""Stops of a local step and of an update, traced in two whole nodes in virtual time; `python tools/stops.py` lists them, and with
`--write` puts those of an update that is answered into docs/architecture.md.

A *stop* is a function or method of the product that is entered on the way, counted once. Not counted are properties, closures, and what
stands for the wire in virtual time (`node/simulate`, `node/net/memory.py` and its inboxes): so libp2p before the first stop of an update,
and the engine's pipe in its middle, are in no figure. A *turning back* is a stop in a module that was left before.

    local step of flows      all that is entered from `Worker.step` until the model has changed; corrections by differences, in full
    local step by default    the same with the default mix, which also asks how far a correction is to be trusted
    update answered          at the node that answers: all that is given the peer's update, or what was made of it (bytes, message, command,
                             call, tensor, effect), from the arrival of its frame, through the answer, until `Mix` has changed the model
    update applied           the same at the requesting node, of the answer

Local steps are those of an engine that has exchanged (`starling.kernels.engine_steps`), updates those of the last round of two nodes that
train the digits with the default mix.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
import torch
import trio
from torch import Tensor
from trio.testing import MockClock

from starling.kernels import engine_steps
from starling.node.config.schema import Manifest, MixSection, PaceSection, PartitionSection
from starling.node.engine.worker import Worker
from starling.node.net.api import Inbound
from starling.node.net.memory_network import MemoryNetwork
from starling.node.rpc import calls
from starling.node.simulate.virtual.swarm import VirtualSwarm

PAGE = Path(__file__).parents[1] / "docs/architecture.md"
PRODUCT = ("gossip/", "robust/", "node/")
WIRE = ("node/simulate/", "node/net/memory.py", "node/net/memory_network.py", "node/net/faults.py", "node/net/inbox.py")
NODES, ROUNDS = 2, 3
PAYLOAD = 1000  # bytes of a frame that has one
NUMBERS = (bytes, bytearray, memoryview, Tensor)
SAYS_NOTHING = (type(None), bool, int, float, str)
_OF: ContextVar[int | None] = ContextVar("node", default=None)
"""The node whose task this is."""


@dataclass(slots=True)
class Way:
    """Functions in the order in which they were entered first."""

    stops: list[tuple[str, str]] = field(default_factory=list)
    """Module and qualified name."""

    def enter(self, stop: tuple[str, str]) -> None:
        """Record a stop, unless it is recorded already."""
        if stop not in self.stops:
            self.stops.append(stop)

    @property
    def turnings(self) -> int:
        """Count the stops in a module that was left before."""
        left, here, count = set[str](), "", 0
        for module, _ in self.stops:
            if module != here:
                count += module in left
                left.add(here)
                here = module
        return count


@cache
def _getters(file: str) -> frozenset[int]:
    """Return the first lines of the properties of a file."""
    return frozenset(
        each.decorator_list[0].lineno
        for each in ast.walk(ast.parse(Path(file).read_text()))
        if isinstance(each, ast.FunctionDef)
        and any(ast.unparse(one).rpartition(".")[2] in ("property", "cached_property") for one in each.decorator_list)
    )


@cache
def stop_of(code: CodeType) -> tuple[str, str] | None:
    """Return module and name of a function of the product; None for other functions, and those that are not counted."""
    _, _, module = code.co_filename.partition("/starling/")
    if not module.startswith(PRODUCT) or module.startswith(WIRE) or "<" in code.co_qualname:
        return None
    return None if code.co_firstlineno in _getters(code.co_filename) else (module, code.co_qualname)


class Update:
    """Everything made of a frame: bytes, messages, commands, calls, tensors and effects."""

    def __init__(self, inbound: Inbound) -> None:
        self._parts: dict[int, object] = {}  # by id; the reference keeps it alive
        self.add(inbound)

    def add(self, made: object) -> None:
        """Record an object made of the update, with the bytes and tensors in it."""
        if not isinstance(made, SAYS_NOTHING) and not _is_shared(made):
            self._parts[id(made)] = made
            self._parts |= {id(each): each for each in _leaves(made) if isinstance(each, NUMBERS) and not _is_shared(each)}

    def within(self, given: object) -> bool:
        """Return whether an object is a part of the update, or contains one."""
        return any(id(each) in self._parts for each in _leaves(given))


def _is_shared(made: object) -> bool:
    """Return whether Python has one object of this value for all: nothing in it, or a single byte."""
    return (isinstance(made, bytes) and len(made) < 2) or (isinstance(made, tuple | frozenset) and not made)


def _leaves(of: object, depth: int = 3) -> Iterator[object]:
    """Yield an object, and what it and its parts hold."""
    yield of
    parts: Iterable[object] = ()
    if isinstance(of, list | tuple):
        parts = of
    elif isinstance(of, dict):
        parts = of.values()
    elif isinstance(of, msgspec.Struct):
        parts = [getattr(of, name) for name in of.__struct_fields__]
    elif is_dataclass(of):
        parts = [getattr(of, each.name, None) for each in fields(of)]
    if depth:
        for each in parts:
            yield from _leaves(each, depth - 1)


class Trace:
    """Trace the functions of one node that handle updates."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.update, self.answers = Way(), False
        self._found: Update | None = None  # the update under way
        self._on_its_way = Way()
        self._engine: Worker | None = None
        self._before: Tensor | None = None  # the model, at the start of a Mix

    def arrived(self, at: MemoryNetwork, inbound: Inbound) -> None:
        """Start with a frame that has an update for this node."""
        if at.peer_id == self._peer and inbound.lane == "exchange" and len(inbound.frame) > PAYLOAD:
            self._found, self._on_its_way = Update(inbound), Way()

    def called(self, frame: FrameType) -> None:
        """Record a call."""
        if frame.f_code is Worker.handle.__code__:
            self.answers |= isinstance(frame.f_locals["request"], calls.Answer)
            if isinstance(frame.f_locals["request"], calls.Mix):
                self._engine = frame.f_locals["self"]
                self._before = self._engine.vector
        if self._found is None or (stop := stop_of(frame.f_code)) is None:
            return
        if any(map(self._found.within, _given(frame))):
            self._on_its_way.enter(stop)

    def returned(self, frame: FrameType, made: object) -> None:
        """Record an object made of the update, and whether the model has changed."""
        if self._before is not None:
            self._look()
        if self._found is None or stop_of(frame.f_code) not in self._on_its_way.stops:
            return
        if any(map(self._found.within, _given(frame))):
            self._found.add(made)

    def _look(self) -> None:
        """End the path if the model has changed."""
        assert self._engine is not None
        assert self._before is not None
        if torch.equal(self._engine.vector, self._before):
            return
        if self._found is not None:
            self.update, self._found = self._on_its_way, None
        self._before = None


def _given(frame: FrameType) -> Iterator[object]:
    """Yield what a function was given, without what it is a method of."""
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        if name not in ("self", "cls"):
            yield frame.f_locals.get(name)


def local_step(mix: MixSection) -> Way:
    """Trace a local step."""
    pace = PaceSection(local_steps=engine_steps.STEPS)
    hub = engine_steps.exchanged(Manifest(partition=PartitionSection(shards=NODES), mix=mix, pace=pace))
    engine, way = hub.engine, Way()
    engine.handle(calls.Train(engine_steps.ROUNDS, 3))
    engine.step()
    before = engine.vector

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and (stop := stop_of(frame.f_code)) is not None and torch.equal(engine.vector, before):
            way.enter(stop)

    sys.setprofile(look)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    return way


def measure() -> dict[str, Way]:
    """Trace local steps, and two nodes to their end; return the paths by name."""
    steps = {"local step by default": local_step(MixSection())}
    pace = PaceSection(local_steps=4, rounds=ROUNDS, quorum=NODES, min_wait_s=5.0)
    manifest = Manifest(partition=PartitionSection(shards=NODES), pace=pace)
    swarm = VirtualSwarm(manifest, seed=1, step_cost_s=lambda _index: 0.05)
    traces = [Trace(swarm.identity(index).peer_id) for index in range(NODES)]

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is MemoryNetwork.arrive.__code__:
            for each in traces:
                each.arrived(frame.f_locals["self"], frame.f_locals["inbound"])
        elif (index := _OF.get()) is not None:
            if event == "call":
                traces[index].called(frame)
            elif event == "return":
                traces[index].returned(frame, argument)

    async def story() -> None:
        async with swarm.running(0):
            for index in range(NODES):
                _OF.set(index)
                await swarm.start(index)
            _OF.set(None)
            await swarm.finished()

    scheduler = sys.modules["trio._core._run"]  # the only way to get the same order of tasks in each run
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]  # noqa: SLF001
    scheduler._r.seed(1)  # noqa: SLF001
    sys.setprofile(look)
    try:
        trio.run(story, clock=MockClock(autojump_threshold=0))
    finally:
        sys.setprofile(None)
    requesting, answering = sorted(traces, key=lambda each: each.answers)
    return {**steps, "update answered": answering.update, "update applied": requesting.update}


def listed(way: Way) -> str:
    """Return the modules of a path, repeated for each visit, with the functions entered there."""
    visits = [(module, [name for _, name in stops]) for module, stops in groupby(way.stops, key=itemgetter(0))]
    return "".join(f"{module:42} {', '.join(names)}\n" for module, names in visits)


def write(way: Way) -> None:
    """Put the way of an update that is answered into its page."""
    before, fence, after = re.split(r"(^```text stops\n)", PAGE.read_text(), flags=re.MULTILINE)
    PAGE.write_text(before + fence + listed(way) + after[after.index("```\n") :])


def main() -> None:
    """Print all paths, or write one."""
    ways = measure()
    if sys.argv[1:] == ["--write"]:
        write(ways["update answered"])
        return
    for name, way in ways.items():
        print(f"{name}: {len(way.stops)} stops, {way.turnings} turnings back")
        print(textwrap.indent(listed(way), "    "))


if __name__ == "__main__":
    main()
