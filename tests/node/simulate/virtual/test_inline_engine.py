"""The engine under virtual time."""

import pytest
import trio
import trio.testing

from starling.gossip.errors import EngineError
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from starling.node.simulate.virtual.inline_engine import InlineEngine, open_inline
from tests.harness.engines import manifest, open_request
from tests.harness.virtual import virtual


def inline(step_cost_s=0.1, call_cost_s=0.01):
    return open_inline(Worker(clock=trio.current_time), step_cost_s=step_cost_s, call_cost_s=call_cost_s)


@virtual
async def test_a_round_costs_its_steps_and_a_call_in_between_waits_for_one():
    async with inline() as engine:
        await engine.call(open_request(manifest()))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_check_between, engine, began)
            trained = await engine.call(calls.Train(0, 20))
        assert trained.figures.local_steps == 20
        assert trained.seconds == pytest.approx(2.01)
        assert trio.current_time() - began == pytest.approx(2.02)


async def _check_between(engine, began):
    await trio.sleep(0.55)
    assert isinstance(await engine.call(calls.Snapshot()), calls.SnapshotInfo)
    assert trio.current_time() - began == pytest.approx(0.62)


@virtual
async def test_the_inline_engine_trains_freely_and_evaluates_meanwhile():
    async with inline() as engine:
        await engine.call(open_request(manifest(pace="clock")))
        await engine.call(calls.Free(on=True, round=0))
        await trio.sleep(1.0)
        assert isinstance(await engine.call(calls.Evaluate()), calls.Evaluated)
        trained = await engine.call(calls.Free(on=False, round=1))
        assert 9 <= trained.figures.local_steps <= 16
        await trio.sleep(10.0)
        assert (await engine.call(calls.Free(on=False, round=2))).figures.local_steps == trained.figures.local_steps


@virtual
async def test_a_killed_engine_fails_the_calls_under_way_and_all_later_ones():
    async with inline() as engine:
        await engine.call(open_request(manifest()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_dies, engine, calls.Train(0, 1000))
            nursery.start_soon(_dies, engine, calls.Evaluate())
            await trio.sleep(0.35)
            engine.kill()
        await _dies(engine, calls.Snapshot())


async def _dies(engine, call):
    with pytest.raises(EngineError, match="killed"):
        await engine.call(call)


@virtual
async def test_a_stopped_inline_engine_refuses_calls():
    async with inline() as engine:
        await engine.call(open_request(manifest()))
        assert await engine.call(calls.Stop()) == calls.Done()
        with pytest.raises(EngineError, match="stopped"):
            await engine.call(calls.Snapshot())


@virtual
async def test_exceptions_of_the_body_propagate_unchanged():
    """Callers distinguish ConfigError from EngineError by type, without unpacking groups."""
    with pytest.raises(KeyError):
        async with inline():
            raise KeyError


def test_a_step_without_cost_is_refused():
    with pytest.raises(ValueError, match="step_cost_s"):
        InlineEngine(Worker(), step_cost_s=0.0, call_cost_s=0.0)
