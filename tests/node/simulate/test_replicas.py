"""Broadcast messages are the same for all receivers: nodes that add all messages have bitwise equal models."""

from functools import cache

import pytest
import torch

from starling.gossip.compress.catalogue import QUANTIZERS, SELECTIONS
from starling.gossip.compress.feedback import FEEDBACKS
from starling.gossip.mix.sparse_outer import LISTING_SELECTORS
from starling.node.config import toml
from starling.node.simulate import rules
from starling.node.simulate.engines import check, simulate
from starling.node.simulate.schema import Scenario
from starling.node.simulate.sweep import cells
from tests.harness.texts import words

pytestmark = pytest.mark.slow
SMALL = words(
    "simulate.nodes=4 simulate.seed=3 pace.rounds=4 pace.local_steps=2 pace.evaluate_every=1 task.hidden=4 partition=by_label",
    "optimizer.momentum=0 optimizer.lr=0.05 mix.clip_norm=0 mix=psgd overlay=complete",
)
COCKTAIL = ("compress.select=cocktail", "compress.ratio=0.02", "compress.keep=0.2", "compress.request=int4", "compress.response=int4")
ENGINES = ("matrix", "virtual")
ROUNDING = sorted(name for name in QUANTIZERS if not QUANTIZERS.facts(name).instead)


@cache
def models(*assignments):
    """Return the models (n, d) of all nodes after each round."""
    chosen, seen = toml.apply_set(Scenario(), (*SMALL, *assignments)), []
    rules.check(cells(chosen))
    check(chosen)
    simulate(chosen, lambda _round, _line: None, lambda _number, x: seen.append(x.clone()))
    return seen


def replicas(*assignments):
    """Assert that all nodes have one model after each round, and that it changes."""
    seen = models(*assignments)
    assert len(seen) == 5
    for x in seen[1:]:
        assert all(torch.equal(row, x[0]) for row in x)
        assert not torch.equal(x, seen[0])


@pytest.mark.parametrize("select", SELECTIONS)
@pytest.mark.parametrize("engine", ENGINES)
def test_replicas_are_equal_to_the_last_bit_with_every_selector(engine, select):
    replicas(f"simulate.engine={engine}", f"compress.select={select}", "compress.request=int4", "compress.response=int4")


@pytest.mark.parametrize("codec", ROUNDING)
def test_replicas_are_equal_to_the_last_bit_with_every_codec(codec):
    replicas("compress.select=random_k", f"compress.request={codec}", f"compress.response={codec}")


@pytest.mark.parametrize("feedback", FEEDBACKS)
@pytest.mark.parametrize("engine", ENGINES)
def test_replicas_are_equal_to_the_last_bit_with_every_feedback(engine, feedback):
    replicas(f"simulate.engine={engine}", f"mix.feedback={feedback}", *COCKTAIL)


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_with_overlap_the_common_models_are_equal(feedback):
    """The common model is evaluated: each node is ahead of it by its own steps. It differs from that of consecutive rounds."""
    settings = ("simulate.engine=virtual", f"mix.feedback={feedback}", *COCKTAIL)
    seen = models("pace.overlap=true", *settings)
    for x in seen[1:]:
        assert all(torch.equal(row, x[0]) for row in x)
    assert not torch.equal(seen[4], models(*settings)[4])


@pytest.mark.parametrize("select", LISTING_SELECTORS)
@pytest.mark.parametrize("engine", ENGINES)
def test_nodes_that_pull_broadcast_messages_are_replicas_with_every_selector(engine, select):
    replicas(f"simulate.engine={engine}", "mix=sparse_outer", f"compress.select={select}", "compress.response=spread2")


@pytest.mark.parametrize("codec", [name for name in ROUNDING if not QUANTIZERS.facts(name).random])
def test_nodes_that_pull_broadcast_messages_are_replicas_with_every_codec(codec):
    replicas("mix=sparse_outer", "compress.select=top_k", f"compress.response={codec}")


@pytest.mark.parametrize("codec", ["int8_nearest", "identity"])
@pytest.mark.parametrize("engine", ENGINES)
def test_nodes_that_send_scalars_are_replicas(engine, codec):
    replicas(f"simulate.engine={engine}", "mix=seeds", "compress.select=full", f"compress.response={codec}")
