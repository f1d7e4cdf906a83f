"""A session that receives several models and combines them into one."""

import math

import pytest
import torch

from starling.node.engine.late_join import MAX_CANDIDATES
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, opened, state_of, x_of


def trained(label: str, rounds: int = 4):
    engine = opened(manifest(), 0, label)
    for turn in range(rounds):
        done(engine, calls.Train(turn, 5))
        done(engine, calls.Mix(turn))
    return engine


def snapshot(engine) -> bytes:
    held = done(engine, calls.Snapshot())
    return done(engine, calls.ReadChunk(held.snapshot, 0, held.size)).data


def poisoned(engine, scale: float) -> bytes:
    engine.replica.x.mul_(scale)
    return snapshot(engine)


@pytest.mark.slow
def test_agreeing_models_are_combined_and_training_continues_from_the_result():
    givers = [trained(label) for label in "bcd"]
    joiner = opened(manifest(), 1, "a")
    for giver, name in zip(givers, "bcd", strict=True):
        done(joiner, calls.Consider(name, 4, snapshot(giver)))
    agreed = done(joiner, calls.Agree())
    assert agreed == calls.Agreed(4, ("b", "c", "d"), ())
    assert torch.allclose(x_of(joiner), torch.stack([x_of(giver) for giver in givers]).median(0).values)
    assert not state_of(joiner).total.any()
    assert joiner.handle(calls.Agree()).kind == "state"  # no vector is retained
    assert math.isfinite(done(joiner, calls.Train(4, 5)).figures.loss)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [-1.0, 10.0])
def test_a_poisoned_model_is_named_and_does_not_count(scale):
    """Its sender's round is ignored too: the round is the median of the others."""
    honest = [trained(label) for label in "bc"]
    liar = poisoned(trained("d"), scale)
    joiner = opened(manifest(), 1, "a")
    done(joiner, calls.Consider("d", 2**62, liar))
    for giver, name, at in zip(honest, "bc", (14, 15), strict=True):
        done(joiner, calls.Consider(name, at, snapshot(giver)))
    agreed = done(joiner, calls.Agree())
    assert agreed == calls.Agreed(14, ("b", "c"), ("d",))
    for giver in honest:
        assert (x_of(joiner) - x_of(giver)).norm() < 0.5 * (x_of(giver) - opened(manifest()).replica.x).norm()


@pytest.mark.slow
@pytest.mark.parametrize("claimed", [1, 2**62])
def test_a_copy_of_an_honest_model_does_not_set_the_round(claimed):
    """It makes a majority with the copied one, beside which the other honest model is far."""
    honest = [trained(label) for label in "bc"]
    joiner = opened(manifest(), 1, "a")
    done(joiner, calls.Consider("d", claimed, snapshot(honest[0])))
    for giver, name, at in zip(honest, "bc", (14, 15), strict=True):
        done(joiner, calls.Consider(name, at, snapshot(giver)))
    agreed = done(joiner, calls.Agree())
    assert (agreed.peers, agreed.outside) == (("b", "d"), ())
    assert agreed.round in {14, 15}


@pytest.mark.slow
@pytest.mark.parametrize(("against_own", "taken"), [(False, True), (True, False)])
def test_models_farther_from_each_other_than_from_a_node_s_own_do_not_replace_it(against_own, taken):
    joiner, one, liar = opened(manifest(), 1, "a"), trained("b"), trained("c")
    joiner.replica.x.copy_(x_of(one))
    done(joiner, calls.Consider("b", 4, snapshot(one)))
    done(joiner, calls.Consider("c", 4, snapshot(liar)))
    assert bool(done(joiner, calls.Agree(against_own=against_own)).peers) == taken
    for name in "bd":
        done(joiner, calls.Consider(name, 4, snapshot(one), 1))
    assert done(joiner, calls.Agree(against_own=against_own)).peers == ("b", "d")


@pytest.mark.slow
def test_two_contradicting_models_are_both_refused():
    joiner, before = opened(manifest(), 1, "a"), x_of(opened(manifest(), 1, "a"))
    for name, state in (("b", snapshot(trained("b"))), ("c", poisoned(trained("c"), -1.0))):
        done(joiner, calls.Consider(name, 4, state))
    assert done(joiner, calls.Agree()) == calls.Agreed(0, (), ())
    assert torch.equal(x_of(joiner), before)


@pytest.mark.slow
def test_memory_is_bounded():
    joiner, state = opened(manifest(), 1, "a"), snapshot(trained("b", 1))
    for number in range(MAX_CANDIDATES):
        done(joiner, calls.Consider(f"p{number}", 1, state))
    assert joiner.handle(calls.Consider("one more", 1, state)).kind == "state"
    done(joiner, calls.Consider("p0", 1, state))  # the same peer again
    assert done(joiner, calls.Agree()).peers == ("p0", "p1", "p2")


def test_collected_claims_do_not_count_in_another_step():
    joiner, state = opened(manifest(), 1, "a"), snapshot(trained("b", 1))
    done(joiner, calls.Consider("old", 1, state, 1))
    done(joiner, calls.Consider("new", 1, state, 2))
    assert done(joiner, calls.Agree()).peers == ("new",)


@pytest.mark.parametrize("mix", ["pet", "gradient_tracking", "psgd"])
def test_every_node_can_recompute_the_initial_model(mix):
    one, other = (opened(manifest(mix=mix), 0, label) for label in "ab")
    assert torch.equal(one.replica.beginning(), x_of(other))
