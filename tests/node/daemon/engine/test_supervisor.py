"""An engine that dies is replaced, one that refuses its task is not, and the reason of the last death is always reported."""

from contextlib import asynccontextmanager, suppress

import pytest
import trio
from msgspec import structs

from starling.gossip.errors import ConfigError, EngineError
from starling.node.config.schema import Manifest
from starling.node.daemon.engine.client import concurrent
from starling.node.daemon.engine.supervisor import MAX_RESTARTS, EngineSupervisor
from starling.node.rpc import calls
from tests.harness.daemons import Reports
from tests.harness.virtual import virtual

OPENED = calls.Opened(10, b"schema", "accuracy", True, "cpu", 5, False, 0)
OPENING = calls.Open(Manifest(), "", 0, "cpu", 1, "", "me")


class Engine:
    """Answers Open with `reply` or raises it; every other call raises EngineError("out of memory") with a place in the code."""

    def __init__(self, reply, place="", refuses=False):
        self.reply, self.place, self.refuses = reply, place, refuses

    async def call(self, request):
        await trio.lowlevel.checkpoint()
        if not isinstance(request, calls.Open):
            raise EngineError("out of memory", self.place, refused=self.refuses)
        if isinstance(self.reply, Exception):
            raise self.reply
        if self.reply is None:
            await trio.sleep_forever()
        return self.reply


def supervised(*replies, places=("",), refuses=False):
    """Run a supervisor whose engines answer Open with these replies in order, repeating the last one. `places`: where the engines die."""
    notes, started = Reports(), []

    @asynccontextmanager
    async def start():
        started.append(replies[min(len(started), len(replies) - 1)])
        yield Engine(started[-1], places[min(len(started), len(places)) - 1], refuses)

    supervisor = EngineSupervisor(start=start, open_request=OPENING, silence_s=5.0, report=notes)
    return supervisor, notes, started


@virtual
async def test_a_task_that_the_engine_refuses_is_a_config_error_at_the_first_start():
    supervisor, notes, started = supervised(calls.Refused("config", "my_task.py:7: NameError: name 'nn' is not defined"))
    with pytest.raises(ConfigError, match=r"my_task\.py:7: NameError"):
        await supervisor.serve()
    assert len(started) == 1
    assert notes.events == []


@pytest.mark.parametrize(
    ("reply", "why"),
    [(EngineError("the engine process ended with signal 9"), "signal 9"), (None, "did not open the task within 5 s")],
    ids=["killed", "silent"],
)
@virtual
async def test_an_engine_that_never_opens_ends_the_node_with_the_last_reason(reply, why):
    supervisor, notes, started = supervised(reply)
    with pytest.raises(EngineError, match=why):
        await supervisor.serve()
    assert len(started) == MAX_RESTARTS + 1
    assert set(notes.names) == {"engine_restarting"}
    assert all(why in text and why in fields["reason"] for _, text, _, fields in notes.events)


@virtual
async def test_a_damaged_checkpoint_is_reported():
    supervisor, notes, _ = supervised(structs.replace(OPENED, resumed=True, round=9, damaged="checkpoint.safetensors: cut short"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.serve)
        await supervisor.ready()
        nursery.cancel_scope.cancel()
    ((name, text, _, fields),) = notes.events
    assert (name, fields) == ("checkpoint_damaged", {})
    assert "cut short" in text


@virtual
async def test_an_engine_lost_on_a_call_is_replaced_and_the_event_says_why():
    supervisor, notes, started = supervised(OPENED)
    async with trio.open_nursery() as nursery:
        assert supervisor.activity == "starting the engine (importing torch)"
        nursery.start_soon(supervisor.serve)
        await supervisor.ready()
        assert supervisor.activity == ""
        with pytest.raises(EngineError, match="out of memory"):
            await supervisor.call(calls.Evaluate())
        assert supervisor.activity == "restarting the engine"
        await supervisor.ready()
        nursery.cancel_scope.cancel()
    assert (len(started), supervisor.restarts) == (2, 1)
    ((name, text, _, fields),) = notes.events
    assert name == "engine_restarting"
    assert "out of memory" in text
    assert fields == {"reason": "out of memory"}


async def served_until_given_up(supervisor):
    """Serve until the supervisor gives up; each engine dies on a call."""

    async def deaths():
        while True:
            await supervisor.ready()
            with suppress(EngineError):
                await supervisor.call(calls.Evaluate())

    async with concurrent(deaths):
        await supervisor.serve()


@pytest.mark.parametrize(
    ("places", "engines"),
    [
        (("local step 7, my_task.py, line 3",), 2),
        (("local step 7, my_task.py, line 3", "local step 9, my_task.py, line 3", "local step 9, my_task.py, line 4"), 4),
        (("",), MAX_RESTARTS + 1),
        (("local step 7, my_task.py, line 3", "", "local step 7, my_task.py, line 3"), 4),
    ],
    ids=["one step", "other steps and lines", "killed", "killed in between"],
)
@virtual
async def test_an_engine_that_dies_twice_in_a_row_at_one_line_of_one_step_is_not_started_again(places, engines):
    """It would draw the same batch and die again; causes outside the engine may be over by then."""
    supervisor, _, started = supervised(OPENED, places=places)
    with pytest.raises(EngineError, match="out of memory") as caught:
        await served_until_given_up(supervisor)
    assert len(started) == engines
    assert ("twice at the same step" in str(caught.value)) == (engines <= 4)


@virtual
async def test_an_engine_error_in_a_step_ends_the_node_in_one_line():
    """The owner must fix it: the step would fail again from any checkpoint."""
    supervisor, _, started = supervised(OPENED, places=("",), refuses=True)
    with pytest.raises(ConfigError, match=r"^out of memory$"):
        await served_until_given_up(supervisor)
    assert len(started) == 1
