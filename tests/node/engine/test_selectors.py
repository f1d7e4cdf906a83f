"""Engines support every selector that a manifest can name, under every form of exchange."""

from functools import cache

import pytest
import torch

from starling.gossip.compress.catalogue import SELECTIONS
from starling.node.config.schema import CompressSection, MixSection
from tests.harness.engines import manifest, opened, play, x_of
from tests.harness.sections import taken

PAIRS = ([("a", "b", 0.5), ("c", "d", 0.5)], [("b", "c", 0.5), ("a", "d", 0.5)])


def spread(engines):
    return float(torch.stack([x_of(engine) for engine in engines.values()]).std(0).norm())


def agreement(mix, **compress):
    return manifest(mix=taken(MixSection, kind=mix, gamma=0.3), compress=taken(CompressSection, **compress), rounds=4, local_steps=2)


def after(agreed, pairs):
    engines = {peer: opened(agreed, shard, peer) for shard, peer in enumerate("abcd")}
    play(engines, agreed, pairs)
    return spread(engines)


@cache
def apart(mix):
    return after(agreement(mix), lambda _turn: [])


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["pet", "k_gt", "choco"])
@pytest.mark.parametrize("select", SELECTIONS)
def test_every_selector_reduces_the_distance_of_models(mix, select):
    """One vector, two vectors together, and swapped messages: models are closer than those of nodes that never exchange."""
    agreed = agreement(mix, select=select, ratio=0.3, keep=0.5, response="int8", rank=2)
    assert 0.0 < after(agreed, lambda turn: PAIRS[turn % 2]) < apart(mix)
