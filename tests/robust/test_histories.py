"""Sketched histories, and signed records of those of others: validation, precedence, forwarding."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.rng import generator
from starling.node.identity import Identity, verify
from starling.robust import histories as h
from starling.robust.histories import BUCKETS, MAX_HISTORIES, Histories, Observed, Record
from starling.robust.rules.foolsgold import similarity
from starling.robust.sybilwall import weights
from tests.strategies import examples, seeds

SWARM = "sswarm"
PEERS = {name: Identity.from_seed(bytes([number] * 32)) for number, name in enumerate("abcdef", start=1)}
IDS = {name: identity.peer_id for name, identity in PEERS.items()}


def vector(size, *labels):
    return torch.randn(size, generator=generator(0, "history", *labels))


def cosine(a, b):
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=-1))


def record(name, round=5, data=None, **changes):
    raw = h.encode(vector(BUCKETS, name) if data is None else data)
    made = Record(IDS[name], round, raw, PEERS[name].sign(h.statement(SWARM, round, raw)))
    return replace(made, **changes)


def received(known, *records, check=verify):
    for it, distance, source in records:
        known = h.add_record(known, it, distance, IDS[source], own=IDS["a"], swarm=SWARM, round=10, verify=check)
    return known


@pytest.mark.parametrize("mixed", [0.0, 0.3, 0.8, 1.0])
def test_a_sketch_preserves_cosines(mixed):
    """Within four standard deviations of 1/√4096."""
    x, other = vector(50_000, "x"), vector(50_000, "y")
    y = mixed * x + math.sqrt(1 - mixed**2) * other
    assert cosine(h.sketch(x, 7), h.sketch(y, 7)) == pytest.approx(cosine(x, y), abs=4 / math.sqrt(BUCKETS))


@pytest.mark.parametrize("buckets", [64, 1024])
def test_the_error_shrinks_with_the_root_of_the_number_of_buckets(buckets):
    """Root mean square over 40 seeds of a cosine that is 0: 1/√s."""
    x, y = vector(5000, "x"), vector(5000, "y")
    errors = [cosine(h.sketch(x, seed, buckets), h.sketch(y, seed, buckets)) - cosine(x, y) for seed in range(40)]
    assert 0.7 < math.sqrt(sum(error**2 for error in errors) / 40 * buckets) < 1.4


@given(a=st.floats(-3, 3), seed=seeds)
@examples(15)
def test_a_sketch_is_linear(a, seed):
    x, y = vector(700, "x"), vector(700, "y")
    together = h.sketch(a * x + y, seed, 64)
    assert torch.allclose(together, a * h.sketch(x, seed, 64) + h.sketch(y, seed, 64), atol=1e-4)


def test_a_sketch_depends_on_the_seed_and_not_on_other_rows():
    x = vector(3 * 1000, "x").reshape(3, 1000)
    assert not torch.equal(h.sketch(x, 5), h.sketch(x, 6))
    for row in range(3):
        assert torch.equal(h.sketch(x, 5)[row], h.sketch(x[row].clone(), 5))


def test_every_coordinate_counts_once_in_every_chunk():
    size = 2 * h._CHUNK + 3
    for place in (0, h._CHUNK - 1, h._CHUNK, size - 1):
        x = torch.zeros(size)
        x[place] = -2.0
        found = h.sketch(x, 1)
        assert (found.count_nonzero(), float(found.abs().sum())) == (1, 2.0)


def test_an_attacker_that_knows_the_seed_can_make_clones_look_different():
    """A component along the signs of one bucket is √(d/s) = 7 times as long in the sketch."""
    x = vector(200_000, "x").requires_grad_()
    sketched = h.sketch(x, 3)
    moved = []
    for bucket in (1, 2):
        (signs,) = torch.autograd.grad(sketched[bucket], x, retain_graph=True)
        moved.append(x.detach() + signs / signs.norm() * x.detach().norm() * 0.3)
    assert cosine(*moved) > 0.9
    assert cosine(h.sketch(moved[0], 3), h.sketch(moved[1], 3)) < 0.3


def test_bytes_keep_the_direction_only():
    x = h.sketch(vector(9000, "x"), 1)
    for scale in (1.0, 1e-30, 1e30):
        again = h.decode(h.encode(x * scale))
        assert cosine(again, x) == pytest.approx(1.0, abs=1e-6)
        assert float(again.norm()) == pytest.approx(1.0, abs=1e-5)
    assert len(h.encode(x)) == 16384
    assert h.decode(h.encode(torch.zeros(BUCKETS))).count_nonzero() == 0


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "sketch_size"),
        (bytes(4 * BUCKETS + 1), "sketch_size"),
        (b"\xff" * (4 * BUCKETS), "sketch_not_finite"),
        (torch.full((BUCKETS,), math.inf).numpy().tobytes(), "sketch_not_finite"),
        (torch.full((BUCKETS,), 3e38).numpy().tobytes(), "sketch_norm"),
        (torch.full((BUCKETS,), 1e-3).numpy().tobytes(), "sketch_norm"),
    ],
)
def test_bytes_that_encode_no_sketch_are_refused(raw, reason):
    with pytest.raises(ValueError, match=f"^{reason}$"):
        h.decode(raw)


def test_a_history_is_the_sum_of_updates_and_earlier_ones_are_not_modified():
    one, two = vector(BUCKETS, 1), vector(BUCKETS, 2)
    before = h.observe(Histories(), "a", one, 3)
    after = h.observe(before, "a", two, 9)
    assert torch.allclose(after.observed["a"].sketch, one + two)
    assert after.observed["a"].round == 9
    h.observe(before, "b", two, 9)
    assert set(before.observed) == {"a"}
    assert torch.equal(before.observed["a"].sketch, one)


def test_observations_and_records_are_bounded_and_the_oldest_are_evicted():
    known = Histories()
    for number in range(MAX_HISTORIES + 9):
        known = h.observe(known, f"p{number:03}", torch.zeros(BUCKETS), number)
        it = Record(f"r{number:03}", number, h.encode(vector(BUCKETS, number)), b"")
        known = h.add_record(known, it, 1, "s", own="me", swarm=SWARM, round=200, verify=lambda *_: True)
    numbers = range(9, MAX_HISTORIES + 9)
    assert sorted(known.observed) == [f"p{number:03}" for number in numbers]
    assert sorted(known.records) == [f"r{number:03}" for number in numbers]


def test_a_signed_record_is_stored_one_hop_farther():
    known = received(Histories(), (record("b"), 0, "b"), (record("c"), 3, "b"))
    assert {it.record.subject: (it.distance, it.source) for it in known.records.values()} == {
        IDS["b"]: (1, IDS["b"]),
        IDS["c"]: (4, IDS["b"]),
    }


def of_another_swarm():
    raw = h.encode(vector(BUCKETS, 1))
    return Record(IDS["c"], 5, raw, PEERS["c"].sign(h.statement("another", 5, raw)))


@pytest.mark.parametrize(
    ("it", "distance", "source", "reason"),
    [
        (record("c", subject=IDS["d"]), 1, "b", "sketch_signature"),
        (record("c", round=6, signature=record("c", round=5).signature), 1, "b", "sketch_signature"),
        (record("c", sketch=record("d").sketch), 1, "b", "sketch_signature"),
        (record("c", signature=b""), 1, "b", "sketch_signature"),
        (of_another_swarm(), 1, "b", "sketch_signature"),
        (record("c", round=12), 1, "b", "sketch_round"),
        (record("c", sketch=b"x"), 1, "b", "sketch_size"),
        (record("c"), -1, "b", "sketch_distance"),
        (record("c"), h.MAX_HOPS, "b", "sketch_distance"),
        (record("c"), 0, "b", "sketch_distance"),  # 0 is for the subject itself
        (record("c"), 1, "c", "sketch_distance"),
    ],
)
def test_an_invalid_record_is_refused(it, distance, source, reason):
    with pytest.raises(ValueError, match=f"^{reason}$"):
        received(Histories(), (it, distance, source))


def test_newer_records_precede_older_ones_and_observations_precede_records():
    known = received(Histories(), (record("c", round=5), 1, "b"))
    assert received(known, (record("c", round=4), 0, "c")) == known
    assert received(known, (record("c", round=5), 0, "c")) == known
    newer = received(known, (record("c", round=6), 2, "d"))
    assert newer.records[IDS["c"]].round == 6
    seen = h.observe(newer, IDS["c"], vector(BUCKETS, "c"), 7)
    assert IDS["c"] not in seen.records
    assert received(seen, (record("c", round=8), 1, "b")) == seen
    assert received(seen, (record("c", round=8), 0, "c")).records[IDS["c"]].source == IDS["c"]  # to be forwarded
    assert received(Histories(), (record("a"), 1, "b")) == Histories()  # our own


def test_signatures_of_old_and_own_records_are_not_checked():
    calls = []

    def counted(*words):
        calls.append(words)
        return verify(*words)

    received(Histories(), (record("c"), 1, "b"), (record("c"), 1, "b"), (record("a"), 1, "b"), check=counted)
    assert len(calls) == 1


def test_records_of_near_subjects_are_drawn_more_often():
    """∝ e^(−0.8(distance − 1)): over a grid of draws exactly that share."""
    known = received(Histories(), (record("b"), 0, "b"), (record("c"), 1, "b"), (record("d"), 3, "b"))
    picked = [h.draw_record(known, IDS["f"], step / 3000).distance for step in range(3000)]
    whole = 1 + math.exp(-0.8) + math.exp(-2.4)
    for distance, odds in ((1, 1.0), (2, math.exp(-0.8)), (4, math.exp(-2.4))):
        assert picked.count(distance) / 3000 == pytest.approx(odds / whole, abs=1e-3)


def test_a_peer_gets_neither_its_own_record_nor_one_it_sent():
    known = received(Histories(), (record("b"), 0, "b"), (record("c"), 1, "b"))
    assert h.draw_record(known, IDS["b"], 0.5) is None
    assert h.draw_record(known, IDS["c"], 0.99).record.subject == IDS["b"]
    assert h.draw_record(Histories(), IDS["b"], 0.5) is None


@pytest.mark.parametrize(("seen", "forwarded"), [("b", True), ("other", False)])
def test_a_record_that_contradicts_our_observation_is_not_forwarded(seen, forwarded):
    known = received(h.observe(Histories(), IDS["b"], vector(BUCKETS, seen), 4), (record("b"), 0, "b"))
    assert (h.draw_record(known, IDS["f"], 0.0) is not None) == forwarded


def test_only_records_of_unobserved_subjects_are_compared():
    known = h.observe(Histories(), IDS["b"], vector(BUCKETS, "b"), 4)
    known = received(known, (record("b"), 0, "b"), (record("c"), 1, "b"))
    assert torch.allclose(h.unobserved(known), h.decode(record("c").sketch)[None])
    assert h.unobserved(Histories()).shape == (0, BUCKETS)


def weights_of(known, peers):
    rows = [known.observed[peer].sketch if peer in known.observed else torch.zeros(BUCKETS) for peer in peers]
    others = [each.sketch for peer, each in known.observed.items() if peer not in peers]
    return weights(torch.stack(rows), torch.cat((*(each[None] for each in others), h.unobserved(known))))


def test_a_single_clone_is_found_by_an_earlier_observation_or_a_record():
    clone = vector(BUCKETS, "clone")
    known = h.observe(h.observe(Histories(), IDS["b"], clone, 1), IDS["c"], vector(BUCKETS, "c"), 1)
    assert weights_of(known, [IDS["b"], IDS["c"]]).tolist() == [1.0, 1.0]
    by_record = received(known, (record("d", data=clone), 1, "c"))
    assert weights_of(by_record, [IDS["b"], IDS["c"]]).tolist() == [0.0, 1.0]
    before = replace(known, observed={**known.observed, IDS["e"]: Observed(clone, 0)})
    assert weights_of(before, [IDS["c"], IDS["b"]]).tolist() == [1.0, 0.0]
    assert weights_of(Histories(), ["x", "y"]).tolist() == [1.0, 1.0]


def test_sketched_clones_are_as_similar_as_whole_ones():
    update = vector(20_000, "clone")
    sketched = similarity(h.sketch(torch.stack((update, update, vector(20_000, "honest"))), 4))
    assert float(sketched[0, 1]) == pytest.approx(1.0, abs=1e-6)
    assert float(sketched[0, 2]) < 0.1
