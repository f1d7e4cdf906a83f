"""A node can compare the average with its neighbors with its own model, evaluated in the same round before its exchanges."""

import pytest

from starling.gossip.errors import ConfigError
from starling.node.config.schema import NodeConfig
from starling.node.daemon.agreed import check_agreed
from starling.node.daemon.observe.snapshot import take_snapshot
from tests.harness.stories import virtual
from tests.harness.swarms import digits, story


@virtual(0)
async def test_the_model_before_the_exchanges_is_measured_too(seed):
    """With very different data lone nodes are far worse, since they have seen few of the labels."""
    agreed = digits(4, mix="dsgd", rounds=8, evaluate_every=4)
    swarm = story(agreed, seed, config=NodeConfig(linger_s=1e6, threads=1, trust=True, evaluate_alone=True))
    async with swarm.running(4):
        await swarm.finished()
        seen = [take_snapshot(it.node) for it in swarm.nodes.values()]
    assert all(each.alone is not None and each.value_round == 8 for each in seen)
    assert any(each.alone != each.value for each in seen)
    assert all(len(each.value_curve) == 2 for each in seen), "it is no point of the curve"
    assert sum(each.value - each.alone for each in seen) > 0.0


def test_in_clock_pace_evaluate_alone_is_refused():
    with pytest.raises(ConfigError, match="evaluate_alone: has no effect with pace=clock") as error:
        check_agreed(digits(2, pace="clock"), NodeConfig(evaluate_alone=True), ours=True)
    assert "\n" not in str(error.value)
    check_agreed(digits(2, pace="clock"), NodeConfig(), ours=True)
