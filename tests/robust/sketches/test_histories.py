"""Histories in little room, and records of those of others: what is believed, kept, and sent on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.rng import generator
from starling.node.identity import Identity, verify
from starling.robust.sketches import histories as h
from starling.robust.sketches.foolsgold import similarity
from starling.robust.sketches.histories import BUCKETS, MOST, Histories, Observed, Record
from starling.robust.sketches.sybilwall import weights
from tests.strategies import examples, seeds

SWARM = "sswarm"


def vector(size, *labels):
    return torch.randn(size, generator=generator(0, "history", *labels))


def cosine(a, b):
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=-1))


# --- sketches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixed", [0.0, 0.3, 0.8, 1.0])
def test_a_sketch_keeps_cosines_to_a_few_times_one_over_the_root_of_its_size(mixed):
    """Within four standard deviations of 1/√4096."""
    x, other = vector(50_000, "x"), vector(50_000, "y")
    y = mixed * x + math.sqrt(1 - mixed**2) * other
    assert cosine(h.sketch(x, 7), h.sketch(y, 7)) == pytest.approx(cosine(x, y), abs=4 / math.sqrt(BUCKETS))


def test_the_error_shrinks_with_the_root_of_the_number_of_buckets():
    """Root mean square over 40 seeds of a cosine that is 0: 1/√s."""
    x, y = vector(5000, "x"), vector(5000, "y")
    for buckets in (64, 1024):
        errors = [cosine(h.sketch(x, seed, buckets), h.sketch(y, seed, buckets)) - cosine(x, y) for seed in range(40)]
        spread = math.sqrt(sum(error**2 for error in errors) / 40)
        assert 0.7 < spread * math.sqrt(buckets) < 1.4


@given(a=st.floats(-3, 3), seed=seeds)
@examples(15)
def test_a_sketch_is_linear_so_updates_add_up(a, seed):
    x, y = vector(700, "x"), vector(700, "y")
    together = h.sketch(a * x + y, seed, 64)
    assert torch.allclose(together, a * h.sketch(x, seed, 64) + h.sketch(y, seed, 64), atol=1e-4)


def test_a_sketch_is_the_same_for_everybody_with_its_seed_and_row_by_row():
    x = vector(3 * 1000, "x").reshape(3, 1000)
    assert torch.equal(h.sketch(x, 5), h.sketch(x.clone(), 5))
    assert not torch.equal(h.sketch(x, 5), h.sketch(x, 6))
    for row in range(3):
        assert torch.equal(h.sketch(x, 5)[row], h.sketch(x[row], 5))


def test_every_coordinate_counts_once_beyond_one_chunk_too():
    """Each chunk has chance of its own; the energy of one coordinate is 1 wherever it lies."""
    size = 2 * h._CHUNK + 3
    for place in (0, h._CHUNK - 1, h._CHUNK, size - 1):
        x = torch.zeros(size)
        x[place] = -2.0
        found = h.sketch(x, 1)
        assert (found.count_nonzero(), float(found.abs().sum())) == (1, 2.0)


def test_who_knows_the_seed_makes_clones_look_different_by_little():
    """Why the seed is no public constant: what follows the signs of one bucket is √(d/s) = 7 times as long in the sketch."""
    x = vector(200_000, "x").requires_grad_()
    sketched = h.sketch(x, 3)
    moved = []
    for bucket in (1, 2):
        (signs,) = torch.autograd.grad(sketched[bucket], x, retain_graph=True)
        moved.append(x.detach() + signs / signs.norm() * x.detach().norm() * 0.3)
    assert cosine(*moved) > 0.9
    assert cosine(h.sketch(moved[0], 3), h.sketch(moved[1], 3)) < 0.3


def test_bytes_keep_the_direction_and_nothing_else():
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
def test_bytes_that_no_sketch_makes_are_refused(raw, reason):
    with pytest.raises(ValueError, match=f"^{reason}$"):
        h.decode(raw)


# --- what was seen ---------------------------------------------------------------------------------------------------


def test_a_history_is_the_sum_of_updates():
    one, two = vector(BUCKETS, 1), vector(BUCKETS, 2)
    known = h.observe(h.observe(Histories(), "a", one, 3), "a", two, 9)
    assert torch.allclose(known.observed["a"].sketch, one + two)
    assert known.observed["a"].round == 9


def test_nothing_that_was_known_is_changed():
    one = vector(BUCKETS, 1)
    before = h.observe(Histories(), "a", one, 1)
    kept = before.observed["a"].sketch.clone()
    h.observe(before, "a", one, 2)
    h.observe(before, "b", one, 2)
    assert set(before.observed) == {"a"}
    assert torch.equal(before.observed["a"].sketch, kept)
    assert before.observed["a"].round == 1


def test_only_so_many_are_remembered_and_the_longest_unseen_go():
    known = Histories()
    for number in range(MOST + 9):
        known = h.observe(known, f"p{number:03}", torch.zeros(BUCKETS), number)
    assert sorted(known.observed) == [f"p{number:03}" for number in range(9, MOST + 9)]


# --- what was heard --------------------------------------------------------------------------------------------------

PEERS = {name: Identity.from_seed(bytes([number] * 32)) for number, name in enumerate("abcdef", start=1)}
IDS = {name: identity.peer_id for name, identity in PEERS.items()}


def record(name, round=5, data=None, **changes):
    raw = h.encode(vector(BUCKETS, name) if data is None else data)
    made = Record(IDS[name], round, raw, PEERS[name].sign(h.statement(SWARM, round, raw)))
    return replace(made, **changes)


def heard(known, told, distance, source, round=10, check=verify):
    return h.hear(known, told, distance, IDS[source], own=IDS["a"], swarm=SWARM, round=round, verify=check)


def test_a_signed_record_is_kept_one_step_farther():
    known = heard(heard(Histories(), record("b"), 0, "b"), record("c"), 3, "b")
    assert {kept.record.subject: (kept.distance, kept.source) for kept in known.heard.values()} == {
        IDS["b"]: (1, IDS["b"]),
        IDS["c"]: (4, IDS["b"]),
    }


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (record("c", subject=IDS["d"]), "sketch_signature"),
        (record("c", round=6, signature=record("c", round=5).signature), "sketch_signature"),
        (record("c", sketch=record("d").sketch), "sketch_signature"),
        (record("c", signature=b""), "sketch_signature"),
        (record("c", round=12), "sketch_round"),
        (record("c", sketch=b"x"), "sketch_size"),
    ],
)
def test_nobody_is_framed_by_a_history_in_its_name(told, reason):
    """Whoever changes subject, round or sketch of a record breaks its signature."""
    with pytest.raises(ValueError, match=f"^{reason}$"):
        heard(Histories(), told, 1, "b")


def test_a_record_of_another_swarm_is_not_one_of_ours():
    raw = h.encode(vector(BUCKETS, 1))
    other = Record(IDS["c"], 5, raw, PEERS["c"].sign(h.statement("another", 5, raw)))
    with pytest.raises(ValueError, match=r"^sketch_signature$"):
        heard(Histories(), other, 1, "b")


@pytest.mark.parametrize(("distance", "source"), [(-1, "b"), (h.FAR, "b"), (0, "b"), (1, "c")])
def test_a_distance_that_cannot_be_is_a_fault(distance, source):
    """0 is said by the subject, and by nobody else."""
    with pytest.raises(ValueError, match=r"^sketch_distance$"):
        heard(Histories(), record("c"), distance, source)


def test_newer_goes_before_older_and_what_we_saw_before_what_we_heard():
    known = heard(Histories(), record("c", round=5), 1, "b")
    assert heard(known, record("c", round=4), 0, "c") == known
    assert heard(known, record("c", round=5), 0, "c") == known
    newer = heard(known, record("c", round=6), 2, "d")
    assert newer.heard[IDS["c"]].round == 6
    seen = h.observe(newer, IDS["c"], vector(BUCKETS, "c"), 7)
    assert IDS["c"] not in seen.heard
    assert heard(seen, record("c", round=8), 1, "b") == seen
    assert heard(seen, record("c", round=8), 0, "c").heard[IDS["c"]].source == IDS["c"]  # to be sent on


def test_what_others_say_of_us_is_of_no_use():
    assert heard(Histories(), record("a"), 1, "b") == Histories()


def test_signatures_are_checked_only_where_it_matters():
    """They cost most: what is old, ours or seen is dropped before."""
    calls = []

    def counted(*words):
        calls.append(words)
        return verify(*words)

    known = heard(Histories(), record("c"), 1, "b", check=counted)
    heard(known, record("c"), 1, "b", check=counted)
    heard(known, record("a"), 1, "b", check=counted)
    assert len(calls) == 1


def test_the_store_is_bounded_and_old_records_go():
    known = Histories()
    for number in range(MOST + 5):
        told = Record(f"p{number:03}", number, h.encode(vector(BUCKETS, number)), b"")
        known = h.hear(known, told, 1, "s", own="me", swarm=SWARM, round=200, verify=lambda *_: True)
    assert sorted(known.heard) == [f"p{number:03}" for number in range(5, MOST + 5)]


# --- what is sent on -------------------------------------------------------------------------------------------------


def test_near_subjects_are_sent_on_more_often():
    """∝ e^(−0.8(distance − 1)): over a grid of chances exactly that share."""
    known = heard(Histories(), record("b"), 0, "b")
    known = heard(known, record("c"), 1, "b")
    known = heard(known, record("d"), 3, "b")
    picked = [h.chosen(known, IDS["f"], step / 3000).distance for step in range(3000)]
    whole = 1 + math.exp(-0.8) + math.exp(-2.4)
    for distance, odds in ((1, 1.0), (2, math.exp(-0.8)), (4, math.exp(-2.4))):
        assert picked.count(distance) / 3000 == pytest.approx(odds / whole, abs=1e-3)


def test_nobody_is_told_its_own_history_or_what_it_told_us():
    known = heard(heard(Histories(), record("b"), 0, "b"), record("c"), 1, "b")
    assert h.chosen(known, IDS["b"], 0.5) is None
    assert h.chosen(known, IDS["c"], 0.99).record.subject == IDS["b"]
    assert h.chosen(Histories(), IDS["b"], 0.5) is None


def test_a_peer_that_signs_other_than_we_saw_is_not_sent_on():
    """A Sybil that clones but signs something random would hide from those who only hear of it."""
    honest = heard(h.observe(Histories(), IDS["b"], vector(BUCKETS, "b"), 4), record("b"), 0, "b")
    assert h.chosen(honest, IDS["f"], 0.0) is not None
    lying = heard(h.observe(Histories(), IDS["b"], vector(BUCKETS, "other"), 4), record("b"), 0, "b")
    assert h.chosen(lying, IDS["f"], 0.0) is None


# --- together --------------------------------------------------------------------------------------------------------


def test_strangers_are_those_we_do_not_ask():
    known = h.observe(Histories(), IDS["b"], vector(BUCKETS, "b"), 4)
    known = heard(heard(known, record("b"), 0, "b"), record("c"), 1, "b")
    assert torch.allclose(h.strangers(known), h.decode(record("c").sketch)[None])
    assert h.strangers(Histories()).shape == (0, BUCKETS)


def weights_of(known, peers):
    """Weights of peers that are asked, by what is remembered of them and of everybody else."""
    rows = [known.observed[peer].sketch if peer in known.observed else torch.zeros(BUCKETS) for peer in peers]
    others = [each.sketch for peer, each in known.observed.items() if peer not in peers]
    return weights(torch.stack(rows), torch.cat((*(each[None] for each in others), h.strangers(known))))


def test_one_clone_among_those_asked_is_found_by_another_asked_before_or_heard_of():
    clone = vector(BUCKETS, "clone")
    known = h.observe(h.observe(Histories(), IDS["b"], clone, 1), IDS["c"], vector(BUCKETS, "c"), 1)
    assert weights_of(known, [IDS["b"], IDS["c"]]).tolist() == [1.0, 1.0]
    told = heard(known, record("d", data=clone), 1, "c")
    assert weights_of(told, [IDS["b"], IDS["c"]]).tolist() == [0.0, 1.0]
    before = replace(known, observed={**known.observed, IDS["e"]: Observed(clone, 0)})
    assert weights_of(before, [IDS["c"], IDS["b"]]).tolist() == [1.0, 0.0]


def test_who_was_never_seen_counts_in_full():
    assert weights_of(Histories(), ["x", "y"]).tolist() == [1.0, 1.0]


def test_sketched_clones_are_as_alike_as_whole_ones():
    update = vector(20_000, "clone")
    rows = torch.stack((update, update, vector(20_000, "honest")))
    sketched = similarity(h.sketch(rows, 4))
    assert float(sketched[0, 1]) == pytest.approx(1.0, abs=1e-6)
    assert float(sketched[0, 2]) < 0.1
