"""The consensus distance that an engine reports: the true one where exchanges show it, and not a liar's choice."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress.header import BLOCK
from starling.gossip.compress.select.low_rank import Factors, Matrix
from starling.gossip.compress.support import Blocks, Full, Indices
from starling.node.config.schema import CompressSection, MixSection, OptimizerSection
from starling.node.engine import devices
from starling.node.engine.consensus import MOST, PEERS, ConsensusDistance, of_model, rms
from starling.node.engine.devices import Gpu
from starling.node.rpc import calls
from tests.harness.engines import done, every, exchange, manifest, opened, x_of
from tests.harness.pulling import receive, trained

LOSSLESS = CompressSection(select="full", request="identity", response="identity")


def pair(mix, compress=LOSSLESS, dim=20, **keys):
    agreed = manifest(
        "quadratic",
        nodes=2,
        mix=MixSection(kind=mix, **({"clip_norm": 0.0} | keys)),
        compress=compress,
        params={"dim": dim},
        optimizer=OptimizerSection(lr=0.1, momentum=0.0, schedule="constant"),
    )
    engines = {peer: opened(agreed, shard, peer) for shard, peer in enumerate("ab")}
    every(engines, calls.Train(0, 5))
    return engines


def true_distance(engines):
    return rms(x_of(engines["a"]) - x_of(engines["b"]))


@pytest.mark.parametrize(
    "mix", ["pet", "dsgd", "gradient_tracking", "k_gt", "outer", "choco", "beer", "push_sum", "r_fast", "defended_tracking", "psgd"]
)
def test_two_nodes_that_exchange_all_of_their_models_learn_how_far_apart_they_are(mix):
    engines = pair(mix)
    apart = true_distance(engines)
    exchange(engines, "a", "b", seq=1)
    assert apart > 1e-3 or mix == "psgd"  # its model waits for the round, as its message says
    for engine in engines.values():
        assert done(engine, calls.Mix(0)).distance == (None if mix == "psgd" else pytest.approx(apart))


def test_a_distance_is_reported_once_and_only_for_completed_exchanges():
    engines = pair("dsgd")
    offered = done(engines["a"], calls.Offer("b", 0, 1, 0, 0.5, 0))
    done(engines["b"], calls.Answer("a", 0, 1, 0, 0.5, offered.gain, offered.payload))
    done(engines["b"], calls.Drop("a", 0, 1))
    assert done(engines["b"], calls.Mix(0)).distance is None
    every(engines, calls.Train(1, 5))
    exchange(engines, "a", "b", seq=2, round=1)
    assert done(engines["b"], calls.Mix(1)).distance is not None
    done(engines["b"], calls.Train(2, 5))
    assert done(engines["b"], calls.Mix(2)).distance is None


def test_the_distance_is_estimated_from_a_sample_of_coordinates():
    engines = pair("dsgd", CompressSection(select="mask", ratio=0.25, request="identity", response="identity"), 4 * BLOCK)
    apart, squares = true_distance(engines), []
    for turn in range(4):
        exchange(engines, "a", "b", seq=turn + 1)
        squares.append(engines["a"].session.distances.figure() ** 2)
    assert sum(squares) / 4 == pytest.approx(apart**2)
    assert min(squares) < max(squares)


def test_in_clock_pace_the_figure_comes_with_the_next_slot():
    agreed = manifest("quadratic", nodes=2, mix=MixSection(kind="dsgd", clip_norm=0.0), compress=LOSSLESS, pace="clock")
    engines = {peer: opened(agreed, shard, peer) for shard, peer in enumerate("ab")}
    for engine in engines.values():
        done(engine, calls.Free(on=True, round=0))
        engine.step()
    apart = true_distance(engines)
    exchange(engines, "a", "b", seq=1)
    assert done(engines["b"], calls.Free(on=True, round=1)).figures.distance == pytest.approx(apart)
    assert done(engines["b"], calls.Free(on=True, round=2)).figures.distance is None


@pytest.mark.parametrize("limit", [1e-3, 1e6])
def test_the_responder_measures_the_unclipped_difference_and_the_initiator_the_clipped_one(limit):
    engines = pair("dsgd", clip_norm=limit)
    apart, size = true_distance(engines), math.sqrt(x_of(engines["a"]).numel())
    offered = done(engines["a"], calls.Offer("b", 0, 1, 0, 0.5, 0))
    answered = done(engines["b"], calls.Answer("a", 0, 1, 0, 0.5, offered.gain, offered.payload))
    applied = done(engines["a"], calls.Apply("b", 0, 1, answered.payload))
    done(engines["b"], calls.Commit("a", 0, 1))
    whole = limit > apart * size
    assert answered.clip == pytest.approx(1.0 if whole else limit / (apart * size))
    assert applied.clip == (1.0 if whole else None)
    assert done(engines["b"], calls.Mix(0)).distance == pytest.approx(apart)
    assert done(engines["a"], calls.Mix(0)).distance == pytest.approx(apart if whole else limit / size)


def test_gathered_vectors_give_the_median_distance():
    engines, vectors = trained("abcd")
    for peer in "bcd":
        receive(engines["a"], peer, vectors[peer])
    apart = sorted(rms(x_of(engines[peer]).half().float() - x_of(engines["a"])) for peer in "bcd")
    assert done(engines["a"], calls.Mix(0, ("b", "c", "d"))).distance == pytest.approx(apart[1])


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12), st.sampled_from([1e30, math.inf]), st.data())
def test_a_minority_of_liars_keeps_the_distance_within_the_honest_range(honest, lie, data):
    distances, liars = ConsensusDistance(), data.draw(st.integers(0, len(honest)))
    words = data.draw(st.permutations([*enumerate(honest), *((f"liar {i}", lie) for i in range(liars))]))
    for peer, apart in words:
        distances.record(str(peer), apart)
    assert min(honest) <= distances.figure() <= max(honest)


def test_with_one_exchange_per_round_recent_rounds_count_too():
    """Otherwise the figure would be a liar's whenever the node meets it."""
    distances = ConsensusDistance()
    for number in range(3 * PEERS):
        distances.record(f"peer {number}", 1.0 + number)
        figure = distances.figure()
        assert figure == 1.0 + number - min(number + 1, PEERS) // 2
    distances.record("liar", 1e9)
    assert distances.figure() < 3 * PEERS


def test_stored_distances_are_bounded_and_deleted_with_the_peer_or_model():
    distances = ConsensusDistance()
    for number in range(2 * MOST):
        distances.record(f"peer {number}", 1.0)
    assert distances.size == MOST
    distances.forget_all()
    assert distances.figure() is None
    distances.record("gone", 5.0)
    distances.forget("gone")
    distances.record("silent", None)
    distances.record("odd", math.nan)
    assert distances.figure() is None
    distances.record("far", math.inf)
    assert distances.figure() is None


def test_coordinates_of_the_model_come_first_in_every_support():
    values = torch.arange(8.0)
    assert torch.equal(of_model(values, Full(), 8, 4), values[:4])
    assert torch.equal(of_model(values[:3], Indices(torch.tensor([1, 3, 6])), 8, 4), values[:2])
    blocks = Blocks(seed=1, start=0, count=4, block=2)
    assert torch.equal(of_model(blocks.take(values), blocks, 8, 4), values[:4])
    coefficients = Factors((Matrix(0, 2, 2),), (torch.ones(2, 1) / math.sqrt(2.0),), left=False)
    assert rms(of_model(values, coefficients, 8, 4)) is None
    assert of_model(values, coefficients, 8, 8) is values
    assert rms(values[:0]) is None


class Driver:
    class NVMLError(Exception):
        pass

    def __init__(self):
        self.asked, self.broken = 0, False

    def utilization(self):
        self.asked += 1
        if self.broken:
            raise self.NVMLError
        return 33


def test_gpu_use_is_read_once_a_second_and_driver_errors_are_ignored(monkeypatch):
    now, driver = SimpleNamespace(s=0.0), Driver()
    monkeypatch.setattr(devices, "pynvml", driver)
    monkeypatch.setattr(torch.cuda, "utilization", driver.utilization)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 1 << 30)
    gpu = Gpu("cuda", lambda: now.s)
    assert gpu.poll() == gpu.poll() == (0.33, 1 << 30)
    assert driver.asked == 1
    now.s, driver.broken = 1.5, True
    assert gpu.poll() == (None, 1 << 30)
    monkeypatch.setattr(devices, "pynvml", None)
    now.s = 3.0
    assert gpu.poll() == (None, 1 << 30)
    assert Gpu("cpu", lambda: now.s).poll() == (None, None)
