"""The task of a swarm of scripts: every computation with a model is refused in one line that says who has it."""

import pytest

from starling.gossip.errors import ConfigError
from starling.node.catalogues import TASKS, task
from starling.node.config.schema import PartitionSection
from starling.node.tasks.api import Source


@pytest.mark.parametrize(
    "use",
    [
        lambda made: made.model(None),
        lambda made: made.data(Source(None, PartitionSection(), 0, 0), "cpu"),
        lambda made: made.loss(None, None),
        lambda made: made.score(None, None),
    ],
    ids=["model", "data", "loss", "score"],
)
def test_the_script_task_has_no_model_data_or_loss(use):
    made = task("script", {"metric": "accuracy", "higher_is_better": True})
    assert all(hasattr(made, member) for member in TASKS.members)
    assert (made.metric, made.higher_is_better) == ("accuracy", True)
    with pytest.raises(
        ConfigError, match=r"trained by its members' own scripts; give it yours with `starling\.Swarm\(DIR, INVITE"
    ) as raised:
        use(made)
    assert "\n" not in str(raised.value)


def test_by_default_a_lower_loss_is_better():
    made = task("script", {})
    assert (made.metric, made.higher_is_better) == ("loss", False)
