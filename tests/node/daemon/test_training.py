"""What the training loop makes of claims about how far the swarm is."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio

from starling.node.config.schema import PaceSection
from starling.node.daemon.progress import Progress
from starling.node.daemon.training import FETCH_PAUSE_S, LONGEST_FETCH_PAUSE_S, Training
from starling.node.rpc.calls import Evaluated, Trained
from starling.node.status.snapshot import EngineFigures
from tests.harness.daemons import Reports
from tests.harness.virtual import virtual

PATIENCE = PaceSection().ramp_rounds
ROUND, FAR = 5, 500


def training(*models: int | None) -> tuple[Training, Reports, list[tuple[float, int, bool]]]:
    """A loop whose peers show these models, by round, one after the other -> it, what it reports, when it asked for what."""
    report, asked, shown = Reports(), [], iter(models)

    async def fetch(newer_than, live, _first):
        asked.append((trio.current_time(), newer_than, live))
        return next(shown)

    async def reset_all():
        return

    context = SimpleNamespace(manifest=SimpleNamespace(pace=PaceSection(rounds=1000)), report=report)
    parts = dict.fromkeys(("engine", "members", "overlay", "neighbors", "order", "clock"))
    made = Training(
        context=context, exchange=SimpleNamespace(reset_all=reset_all), progress=Progress(), fetch=fetch, **parts
    )
    return made, report, asked


@virtual
async def test_claims_that_nobody_can_show_a_model_for_are_looked_into_ever_more_rarely():
    loop, _, asked = training(*[None] * 12)
    while trio.current_time() < 4 * LONGEST_FETCH_PAUSE_S:
        assert await loop._jump(ROUND, FAR) == ROUND + 1
        await trio.sleep(1.0)
    pauses = [later - earlier for (earlier, *_), (later, *_) in pairwise(asked)]
    assert pauses == [pytest.approx(min(FETCH_PAUSE_S * 2**n, LONGEST_FETCH_PAUSE_S)) for n in range(len(pauses))]
    assert all(it[1:] == (ROUND + 1 + PATIENCE, True) for it in asked), "with a model of its own to lose"


@virtual
async def test_after_a_model_that_was_shown_the_next_claim_is_looked_into_at_once():
    loop, _, asked = training(None, FAR, None)
    await loop._jump(ROUND, FAR)
    await trio.sleep(FETCH_PAUSE_S)
    assert await loop._jump(ROUND, FAR) == FAR
    await loop._jump(ROUND, FAR)
    await loop._jump(ROUND, FAR)
    assert [at for at, *_ in asked] == [0.0, FETCH_PAUSE_S, FETCH_PAUSE_S]


@virtual
async def test_a_short_jump_needs_no_model():
    loop, _, asked = training()
    assert await loop._jump(ROUND, ROUND + 1 + PATIENCE) == ROUND + 1 + PATIENCE
    assert await loop._jump(ROUND, ROUND) == ROUND + 1
    assert not asked


@virtual
async def test_who_does_few_of_its_local_steps_says_so_once():
    loop, report, _ = training()
    steps = loop.pace.local_steps

    def rounds(count, done, skipped=0):
        for _ in range(count):
            loop._due += steps
            loop.progress.computed.add(done, 0.0)
            loop._count(skipped)

    rounds(30, steps)
    assert not loop.progress.few_steps
    rounds(10, steps, skipped=5)
    assert loop.progress.few_steps
    rounds(10, steps, skipped=5)
    assert report.names == ["few_steps"]
    assert f"{50 * steps} of {150 * steps}" in loop.progress.few_steps
    rounds(200, steps)
    assert not loop.progress.few_steps, "it has caught up"


@virtual
async def test_what_the_engine_changed_by_itself_is_an_event():
    loop, report, _ = training()
    loop._update(Trained(0, EngineFigures(), 1.0, notes=("out of memory: …",)))
    loop._update(Trained(1, EngineFigures(), 1.0))
    assert report.names == ["numerics_changed"]


@virtual
@pytest.mark.parametrize(("loss", "level"), [(0.7, "info"), (math.nan, "warning"), (math.inf, "warning")])
async def test_an_evaluation_whose_loss_is_no_number_is_a_warning(loss, level):
    """The accuracy of outputs that are no numbers is that of the first class: it alone does not show that the model is broken."""
    loop, report, _ = training()

    async def call(_request):
        return Evaluated(0.5, loss, 80)

    loop.engine = SimpleNamespace(call=call, opened=SimpleNamespace(metric="accuracy"))
    await loop.evaluate()
    [(name, text, told, _)] = report.events
    assert (name, told) == ("evaluated", level)
    assert text.startswith("accuracy 0.5 after round 0")
    assert (f"its loss on held-out samples is {loss}" in text) == (level == "warning")
