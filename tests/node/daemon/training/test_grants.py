"""The number of local steps in a round."""

from types import SimpleNamespace

import pytest
import trio

from starling.gossip.overlay.catalogue import overlay
from starling.node.config.schema import PaceSection
from starling.node.daemon.progress import Progress
from starling.node.daemon.training.grants import Grants
from tests.harness.daemons import Reports
from tests.harness.virtual import virtual

PACE = PaceSection(rounds=1000)
STEPS = PACE.local_steps


def grants(over=None, members=4):
    """Return grants for an engine that takes a tenth of a second per step."""

    async def train(grant):
        await trio.sleep(0.1 * grant.steps)
        return grant

    roster = SimpleNamespace(roster=tuple(f"m{index}" for index in range(members)))
    return Grants(PACE, over, roster, SimpleNamespace(train=train), Progress(), Reports())


def rounds(made, count, done, skipped=0):
    for number in range(count):
        made.grant(number)
        made.progress.computed.add(done, 0.0)
        made.skipped(skipped)


@virtual
async def test_a_node_with_few_local_steps_warns_once():
    made = grants()
    rounds(made, 30, STEPS)
    assert not made.progress.few_steps
    rounds(made, 10, STEPS, skipped=5)
    assert made.progress.few_steps
    rounds(made, 10, STEPS, skipped=5)
    assert made.report.names == ["few_steps"]
    assert f"{50 * STEPS} of {150 * STEPS}" in made.progress.few_steps
    rounds(made, 200, STEPS)
    assert not made.progress.few_steps, "it has caught up"


@virtual
async def test_rounds_that_pass_while_the_owner_wants_no_steps_are_not_due():
    made = grants()
    made.progress.speed.add(0.0, 0)
    made.progress.speed.add(1.0, STEPS, 1.0)
    made.pause(True)
    rounds(made, 30, 0, skipped=5)
    assert made.due == 0
    assert not made.progress.few_steps


@virtual
async def test_a_paused_node_waits_as_long_as_a_round_s_steps_take_and_still_does_the_first():
    made = grants()
    made.pause(True)
    assert (await made.train(made.grant(0))).steps == STEPS, "it is not known how long that takes"
    took_s = trio.current_time()
    made.progress.speed.add(0.0, 0)
    made.progress.speed.add(took_s, STEPS, took_s)
    assert (await made.train(made.grant(1))).steps == 0
    assert trio.current_time() == pytest.approx(2.0 * took_s)
    made.pause(False)
    assert (await made.train(made.grant(2))).steps == STEPS
    assert trio.current_time() == pytest.approx(3.0 * took_s)


@virtual
async def test_a_node_that_falls_behind_does_fewer_local_steps():
    made = grants()
    made.passed(4, elapsed_s=4.0, waited_s=0.0)
    assert made.grant(0).steps == STEPS // 4
    assert made.due == STEPS, "all of them were due"


@virtual
async def test_rounds_of_a_sweep_of_averaging_have_no_local_steps():
    made = grants(overlay("base_k", 1, 4, average_every=4))
    granted = [made.grant(number) for number in range(40)]
    assert {it.steps for it in granted} == {0, STEPS}
    assert made.due == sum(it.steps for it in granted)
