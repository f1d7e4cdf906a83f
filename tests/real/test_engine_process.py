"""The engine in its own process dies alone, and never outlives its daemon."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import asynccontextmanager

import psutil
import pytest
import trio
from msgspec import structs

from starling.gossip.errors import EngineError
from starling.node.daemon.engine.client import open_engine
from starling.node.daemon.engine.supervisor import EngineSupervisor
from starling.node.rpc import calls
from tests.harness.cgroups import limited_memory
from tests.harness.daemons import Reports
from tests.harness.engines import manifest, open_request, opened, run
from tests.harness.processes import lives

pytestmark = [pytest.mark.real, pytest.mark.slow]

warm = pytest.mark.usefixtures("warm_engines")
START_S = 60.0  # importing torch on a busy machine


def real(test):
    """Run an async test on the real clock, with a timeout."""

    async def bounded(*args):
        with trio.fail_after(START_S):
            await test(*args)

    def run_it():
        trio.run(bounded)

    run_it.__name__, run_it.__doc__ = test.__name__, test.__doc__
    return run_it


@real
async def test_an_engine_process_computes_the_bits_of_the_engine_object():
    """All calls go through the pipe; the bits equal those of an engine called directly."""
    agreed = manifest(rounds=1)
    twin = opened(agreed)
    async with open_engine() as engine:
        assert (await engine.call(open_request(agreed))).parameters == 4810
        trained = await engine.call(calls.Train(0, 5))
        assert trained.figures.loss == run(twin, calls.Train(0, 5)).figures.loss
        offered = await engine.call(calls.Offer("b", 0, 1, 0, 0.5, 0))
        assert offered == run(twin, calls.Offer("b", 0, 1, 0, 0.5, 0))
        assert (await engine.call(calls.Evaluate())) == run(twin, calls.Evaluate())
        assert await engine.call(calls.Stop()) == calls.Done()
        with pytest.raises(EngineError, match="exit status 0"):
            await engine.call(calls.Snapshot())


@warm
@real
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a priority is the process's")
async def test_the_engine_and_its_threads_lower_their_priority_when_it_opens():
    async with open_engine() as engine:
        await engine.call(structs.replace(open_request(manifest(rounds=1)), nice=7, threads=2))
        await engine.call(calls.Train(0, 5))
        threads = [each.id for each in psutil.Process(engine.pid).threads()]
        assert len(threads) >= 2
        before = os.getpriority(os.PRIO_PROCESS, 0)
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {min(19, before + 7)}


@warm
@real
async def test_a_killed_engine_fails_every_call_within_a_moment():
    """SIGKILL, as from an out-of-memory killer: the daemon keeps the node's identity and edges."""
    async with open_engine() as engine:
        await engine.call(open_request(manifest(pace="clock")))
        await engine.call(calls.Free(on=True, round=0))

        async def dies(call):
            with pytest.raises(EngineError, match="signal 9"), trio.fail_after(2.0):
                await engine.call(call)

        os.kill(engine.pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dies, calls.Evaluate())
            nursery.start_soon(dies, calls.Snapshot())
            await trio.sleep(0.1)
            os.kill(engine.pid, signal.SIGKILL)
        await dies(calls.Snapshot())
        assert "signal 9" in engine.ended


async def limited(more: int) -> tuple[str, float, bool]:
    """Give an engine whose address space may grow by this many bytes work that needs more.

    Return its error, the seconds until it, and whether an engine without the limit works afterwards.
    """
    resource = pytest.importorskip("resource")
    began = trio.current_time()
    async with open_engine() as engine:
        resource.prlimit(engine.pid, resource.RLIMIT_AS, (psutil.Process(engine.pid).memory_info().vms + more, resource.RLIM_INFINITY))
        large = manifest("diagonal", params={"dim": 1 << 24, "nodes": 4})
        said = ""
        try:
            reply = await engine.call(open_request(large))
            said = reply.reason if isinstance(reply, calls.Refused) else ""
            if not said:
                await engine.call(calls.Train(0, 5))
        except EngineError as error:
            said = str(error)
    took_s = trio.current_time() - began
    async with open_engine() as engine:
        await engine.call(open_request(manifest()))
        goes_on = isinstance(await engine.call(calls.Train(0, 5)), calls.Trained)
    return said, took_s, goes_on


@pytest.mark.acceptance
@pytest.mark.skipif(sys.platform != "linux", reason="prlimit")
@pytest.mark.parametrize("more", [32 << 20, 200 << 20, 400 << 20])
def test_an_engine_without_memory_says_so_in_one_line_and_the_next_one_works(more):
    said, took_s, goes_on = trio.run(limited, more)
    assert said
    assert "\n" not in said
    assert took_s < START_S
    assert goes_on


@pytest.mark.acceptance
@pytest.mark.skipif(sys.platform != "linux", reason="control groups")
@real
async def test_an_engine_killed_by_its_control_group_gives_one_line_and_is_restarted():
    """As in a container whose other processes used up its memory: the kernel kills the engine, and the daemon reports it and continues."""
    engines, notes = [], Reports()

    @asynccontextmanager
    async def started():
        async with open_engine() as engine:
            engines.append(engine)
            yield engine

    supervisor = EngineSupervisor(
        start=started, open_request=open_request(manifest("diagonal", params={"dim": 1 << 22, "nodes": 4})), silence_s=START_S, report=notes
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.serve)
        await supervisor.ready()
        with limited_memory(engines[0].pid, 8 << 20), pytest.raises(EngineError, match="signal 9"):
            await supervisor.call(calls.Train(0, 50))
        await supervisor.ready()
        assert isinstance(await supervisor.call(calls.Train(0, 1)), calls.Trained)
        nursery.cancel_scope.cancel()
    assert notes.names == ["engine_restarting"]
    assert "signal 9 (the kernel sends it where memory runs out)" in notes.texts[0]


@pytest.mark.acceptance
@pytest.mark.skipif(sys.platform != "linux", reason="control groups")
@real
async def test_a_task_beyond_the_control_group_s_memory_is_refused_in_one_line():
    async with open_engine() as engine:
        with limited_memory(engine.pid, 512 << 20):
            reply = await engine.call(open_request(manifest("diagonal", params={"dim": 1 << 24, "nodes": 4})))
    assert isinstance(reply, calls.Refused)
    assert "needs at least" in reply.reason
    assert "537 MB are there" in reply.reason
    assert "\n" not in reply.reason


@warm
@real
async def test_a_cancelled_call_leaves_the_pipe_whole():
    async with open_engine() as engine:
        await engine.call(open_request(manifest(pace="clock")))
        os.kill(engine.pid, signal.SIGSTOP)
        with trio.move_on_after(0.1) as scope:
            await engine.call(calls.Consider("b", 0, b"x" * (8 << 20)))
        assert scope.cancelled_caught
        os.kill(engine.pid, signal.SIGCONT)
        assert isinstance(await engine.call(calls.Snapshot()), calls.SnapshotInfo)


@warm
@real
async def test_an_engine_ignores_signals_to_the_process_group():
    """Ctrl-C reaches both processes; the daemon still wants to say Stop."""
    async with open_engine() as engine:
        await engine.call(open_request(manifest()))
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine.pid, number)
        assert isinstance(await engine.call(calls.Train(0, 5)), calls.Trained)


@warm
@real
async def test_a_bug_in_the_engine_ends_it_and_is_reported():
    """The error is not an answer: an engine with a broken invariant is not used again."""
    async with open_engine() as engine:
        await engine.call(open_request(manifest(params={"model": "mlp"})))
        with pytest.raises(EngineError, match="the engine broke down: "):
            await engine.call(calls.Train("round", -1))


@warm
def test_an_engine_does_not_outlive_a_daemon_that_was_killed(tmp_path):
    """Even during training: it ends with the pipe."""
    daemon = textwrap.dedent("""
        import trio
        from starling.node.daemon.engine.client import open_engine
        from starling.node.rpc import calls
        from tests.harness.engines import manifest, open_request

        async def main():
            async with open_engine() as engine:
                await engine.call(open_request(manifest(pace="clock")))
                await engine.call(calls.Free(on=True, round=0))
                print(engine.pid, flush=True)
                await trio.sleep_forever()

        trio.run(main)
    """)
    with subprocess.Popen([sys.executable, "-c", daemon], stdout=subprocess.PIPE, text=True) as process:
        engine = psutil.Process(int(process.stdout.readline()))
        assert lives(engine)
        process.kill()
        deadline = time.monotonic() + 5.0
        while lives(engine) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not lives(engine)


def test_what_a_task_prints_goes_to_stderr(tmp_path):
    """The creator's stdout has only the invite, and the engine inherits it."""
    (tmp_path / "chatty.py").write_text(
        "from starling.node.tasks.digits import Digits\n"
        "class Chatty(Digits):\n"
        "    def model(self, generator):\n"
        "        print('hello from the task')\n"
        "        return super().model(generator)\n"
    )
    daemon = textwrap.dedent("""
        import trio
        from starling.node.daemon.engine.client import open_engine
        from tests.harness.engines import manifest, open_request

        async def main():
            async with open_engine() as engine:
                print(type(await engine.call(open_request(manifest("chatty:Chatty")))).__name__, flush=True)

        trio.run(main)
    """)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, "-c", daemon], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=True)
    assert done.stdout == "Opened\n"
    assert "hello from the task" in done.stderr


@warm
@real
async def test_user_errors_are_returned_as_one_line():
    async with open_engine() as engine:
        refused = await engine.call(open_request(manifest(), shard=99))
        assert isinstance(refused, calls.Refused)
        assert refused.kind == "config"
