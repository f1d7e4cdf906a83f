"""How evaluations are reported, and early stopping."""

import math
from types import SimpleNamespace

import pytest

from starling.node.config.schema import PaceSection
from starling.node.daemon.progress import Progress
from starling.node.daemon.training.evaluation import Evaluation
from starling.node.rpc.calls import Evaluated, Refused
from tests.harness.daemons import Reports
from tests.harness.virtual import virtual


def evaluation(reply, every=5):
    async def evaluate(_round):
        return reply

    votes = []
    stop = SimpleNamespace(evaluated=lambda *said: votes.append(said), agreed=lambda: len(votes) > 1)
    progress = Progress()
    progress.round = 3
    work = SimpleNamespace(evaluate=evaluate)
    return Evaluation(PaceSection(evaluate_every=every), work, stop, progress, Reports(), "accuracy"), votes


@virtual
@pytest.mark.parametrize(("loss", "level"), [(0.7, "info"), (math.nan, "warning"), (math.inf, "warning")])
async def test_an_evaluation_with_a_nan_loss_gives_a_warning(loss, level):
    """Outputs that are NaN still give the accuracy of the first class, so the accuracy alone does not show that the model is broken."""
    made, _ = evaluation(Evaluated(0.5, loss, 80))
    await made.evaluate()
    [(name, text, told, _)] = made.report.events
    assert (name, told) == ("evaluated", level)
    assert text.startswith("accuracy 0.5 after round 3")
    assert (f"its loss on held-out samples is {loss}" in text) == (level == "warning")


@virtual
async def test_every_evaluation_is_a_vote_on_stopping():
    made, votes = evaluation(Evaluated(0.5, 0.7, 80))
    await made.evaluate()
    assert (votes, made.stopped_early) == ([(3, 0.5)], False)
    await made.evaluate()
    assert made.stopped_early


@virtual
@pytest.mark.parametrize(
    ("reply", "round", "events"),
    [
        (None, 3, []),  # the crew was busy
        (Refused("config", "no held-out data"), 3, ["not_evaluated"]),
        (Refused("state", "another evaluation is in progress"), None, []),  # this evaluation will be retried
    ],
)
async def test_an_evaluation_without_a_value_is_repeated_only_if_it_can_be(reply, round, events):
    made, votes = evaluation(reply)
    await made.evaluate()
    assert (made.progress.evaluated.round, made.progress.evaluated.value, made.report.names, votes) == (round, None, events, [])


@virtual
async def test_evaluations_are_due_after_every_so_many_rounds():
    made, _ = evaluation(None)
    assert [done for done in range(16) if made.due(done)] == [5, 10, 15]
