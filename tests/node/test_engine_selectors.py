"""Whatever a manifest may name, engines can do: every selector under every form of exchange."""

import pytest
import torch

from gossip.compress.names import SELECTORS
from node.config import CompressSection, MixSection
from node.engine.compression import BUDGET
from tests.node.engines import manifest, opened, play, x_of

PAIRS = ([("a", "b", 0.5), ("c", "d", 0.5)], [("b", "c", 0.5), ("a", "d", 0.5)])


def spread(engines):
    return float(torch.stack([x_of(engine) for engine in engines.values()]).std(0).norm())


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["pet", "k_gt", "choco"])
@pytest.mark.parametrize("select", [BUDGET, *SELECTORS])
def test_every_selector_brings_models_together_on_a_neural_network(mix, select):
    """One vector, two side by side, and messages that are swapped: nearer to each other than nodes that never meet."""
    compress = CompressSection(select=select, ratio=0.3, keep=0.5, response="int8", rank=2)
    agreed = manifest(mix=MixSection(kind=mix, gamma=0.3), compress=compress, rounds=4, local_steps=2)
    met, apart = ({peer: opened(agreed, shard, peer) for shard, peer in enumerate("abcd")} for _ in range(2))
    play(met, agreed, lambda turn: PAIRS[turn % 2])
    play(apart, agreed, lambda _turn: [])
    assert 0.0 < spread(met) < spread(apart)
