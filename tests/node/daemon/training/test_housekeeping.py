"""Events about local steps and checkpoints, and the loss of the engine."""

from types import SimpleNamespace

import pytest

from starling.gossip.errors import EngineError
from starling.node.daemon.progress import Progress
from starling.node.daemon.training.housekeeping import UNDONE_ROUNDS, Housekeeping
from starling.node.rpc import calls
from starling.node.status.snapshot import EngineFigures
from tests.harness.daemons import Reports
from tests.harness.virtual import virtual


class Engine:
    """Gives or raises the next reply; `readied`: how often the node waited for another engine."""

    def __init__(self, *replies):
        self._replies, self.readied = iter(replies), 0

    async def call(self, _request):
        reply = next(self._replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def ready(self):
        self.readied += 1


def housekeeping(*replies):
    report = Reports()
    context = SimpleNamespace(report=report, config=SimpleNamespace(checkpoint_s=60.0))
    return Housekeeping(context, Engine(*replies), Progress(), evaluation=None), report


@virtual
async def test_changes_made_by_the_engine_are_events():
    house, report = housekeeping()
    house.trained(calls.Trained(0, EngineFigures(), 1.0, notes=("out of memory: …",)), 0)
    house.trained(calls.Trained(1, EngineFigures(), 1.0), 1)
    assert report.names == ["numerics_changed"]
    assert house.progress.round == 2


@virtual
async def test_several_rounds_without_a_kept_step_give_one_event():
    house, report = housekeeping()
    for number in range(1, UNDONE_ROUNDS + 3):
        house.trained(calls.Trained(number, EngineFigures(4 * number), 1.0, undone=4), number)
    assert report.names == ["steps_undone"]
    assert house.undone_rounds >= UNDONE_ROUNDS
    house.trained(calls.Trained(9, EngineFigures(100), 1.0, undone=1), 9)
    assert house.undone_rounds == 0


@virtual
async def test_a_checkpoint_that_cannot_be_written_is_reported_once_and_so_is_the_first_that_can():
    full = calls.Refused("disk", "no space left")
    house, report = housekeeping(full, EngineError("gone"), calls.Done(), calls.Done())
    await house.save()
    assert house.cannot_save == "no space left"
    await house.save()
    assert house.cannot_save == "gone"
    await house.save()
    await house.save_when_due()
    assert not house.cannot_save
    assert report.names == ["cannot_save", "saves_again"]
    assert report.texts[0] == "no space left; training goes on, free some space (df -h)"


@virtual
async def test_the_loss_of_an_engine_ends_only_running_exchanges():
    house, report = housekeeping()
    lost = []
    async with house.surviving(lambda: lost.append(1)):
        raise EngineError("the engine process ended")
    assert (lost, house.engine.readied, report.names) == ([1], 1, ["engine_lost"])
    with pytest.raises(ZeroDivisionError):
        async with house.surviving(lambda: lost.append(1)):
            raise ZeroDivisionError
    assert lost == [1]
