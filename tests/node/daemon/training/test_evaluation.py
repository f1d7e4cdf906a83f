"""Evaluations as they are told, and what ends the rounds early."""

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
async def test_an_evaluation_whose_loss_is_no_number_is_a_warning(loss, level):
    """The accuracy of outputs that are no numbers is that of the first class: it alone does not show that the model is broken."""
    made, _ = evaluation(Evaluated(0.5, loss, 80))
    await made.evaluate()
    [(name, text, told, _)] = made.report.events
    assert (name, told) == ("evaluated", level)
    assert text.startswith("accuracy 0.5 after round 3")
    assert (f"its loss on held-out samples is {loss}" in text) == (level == "warning")


@virtual
async def test_every_value_is_a_vote_on_stopping():
    made, votes = evaluation(Evaluated(0.5, 0.7, 80))
    await made.evaluate()
    assert (votes, made.stopped_early) == ([(3, 0.5)], False)
    await made.evaluate()
    assert made.stopped_early


@virtual
@pytest.mark.parametrize(
    ("reply", "round", "events"),
    [
        (None, 3, []),  # a crew was about something else
        (Refused("config", "no held-out data"), 3, ["not_evaluated"]),
        (Refused("state", "another evaluation is in progress"), None, []),  # to be tried again
    ],
)
async def test_where_there_is_no_value_the_round_counts_as_evaluated_unless_it_may_be_tried_again(reply, round, events):
    made, votes = evaluation(reply)
    await made.evaluate()
    assert (made.progress.evaluated.round, made.progress.evaluated.value, made.report.names, votes) == (round, None, events, [])


@virtual
async def test_evaluations_are_due_after_every_so_many_rounds():
    made, _ = evaluation(None)
    assert [done for done in range(16) if made.due(done)] == [5, 10, 15]
