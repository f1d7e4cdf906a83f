"""Histories of peers, and signed records from others: validation, precedence, forwarding."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.research import histories as h
from benchmarks.research.histories import MAX_HISTORIES, Histories, Observed, Record
from benchmarks.research.sybilwall import weights
from starling.gossip.rng import generator
from starling.node.identity import Identity, verify
from starling.robust.sketches import BUCKETS, sketch

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


def test_bytes_keep_the_direction_only():
    x = sketch(vector(9000, "x"), 1)
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
    """∝ e^(−0.8(distance − 1)): exactly that share over a grid of draws."""
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
def test_a_record_contradicting_an_observation_is_not_forwarded(seen, forwarded):
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


def test_a_single_clone_is_detected_by_an_earlier_observation_or_record():
    clone = vector(BUCKETS, "clone")
    known = h.observe(h.observe(Histories(), IDS["b"], clone, 1), IDS["c"], vector(BUCKETS, "c"), 1)
    assert weights_of(known, [IDS["b"], IDS["c"]]).tolist() == [1.0, 1.0]
    by_record = received(known, (record("d", data=clone), 1, "c"))
    assert weights_of(by_record, [IDS["b"], IDS["c"]]).tolist() == [0.0, 1.0]
    before = replace(known, observed={**known.observed, IDS["e"]: Observed(clone, 0)})
    assert weights_of(before, [IDS["c"], IDS["b"]]).tolist() == [1.0, 0.0]
    assert weights_of(Histories(), ["x", "y"]).tolist() == [1.0, 1.0]
