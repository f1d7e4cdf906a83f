"""A vector sent in fragments: every part in turn, equal bits at both ends, and only the agreed cut."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Effect, Phase
from starling.gossip.compress import codec
from starling.gossip.compress.header import FRAGMENT, HEADER
from starling.gossip.compress.quantize import Float32, Fp16, Int4
from starling.gossip.compress.select.coordinates import Fragments
from starling.gossip.compress.support import Fragment
from starling.gossip.mix.edge_ledger import average, opened
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.mix.pet import Pet
from starling.gossip.rng import generator
from starling.robust.clip import clip
from tests.strategies import examples, seeds

GOLDEN = Path(__file__).parents[2] / "golden" / "fragments.json"
DIM = 200
PARTS = 3


def gaussian(*labels, dim=DIM):
    return torch.randn(dim, generator=generator(0, "fragments", *labels))


def golden_payloads():
    """Return golden payloads of multiples of 1/16, exact in half precision. The parts of 200 coordinates have lengths 66, 67 and 67."""
    payloads = {}
    for part in range(PARTS):
        support = Fragment(part, PARTS)
        values = (torch.arange(support.size(DIM), dtype=torch.float32) * 37 % 64 - 31) / 16
        payloads[f"request part {part} of {PARTS}"] = codec.encode(values, support, Fp16(), DIM, generator(0)).hex()
    return payloads


def test_payloads_never_change():
    assert json.loads(GOLDEN.read_text()) == golden_payloads()


@given(dim=st.integers(2, 5000), parts=st.integers(2, 70), seed=seeds, first=st.integers(0, 10**6))
@examples(60)
def test_the_parts_cycle_through_the_whole_vector(dim, parts, seed, first):
    """In any `parts` consecutive exchanges of an edge each coordinate occurs exactly once, and lengths differ by at most one."""
    parts, x, visits = min(parts, dim), torch.zeros(dim), torch.zeros(dim)
    supports = [Fragments(parts).select(x, None, seed, turn) for turn in range(first, first + parts)]
    for support in supports:
        visits[support.index(dim)] += 1
    assert torch.equal(visits, torch.ones(dim))
    lengths = {support.size(dim) for support in supports}
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= Fragments(parts).contraction(dim) * dim - 1e-9


def test_edges_begin_at_different_parts():
    """So a node's exchanges of one round cover different parts: of 64 edges no part has more than a quarter."""
    begun = [Fragments(8).select(torch.zeros(64), None, seed, 1).part for seed in (hash((1, n)) % 2**64 for n in range(64))]
    assert max(begun.count(part) for part in range(8)) <= 16


@given(dim=st.integers(2, 600), parts=st.integers(2, 70), part=st.integers(0, 69), seed=seeds)
@examples(40)
def test_a_part_is_taken_and_added_at_its_offset(dim, parts, part, seed):
    parts = min(parts, dim)
    support, x = Fragment(part % parts, parts), gaussian(seed, dim=dim)
    taken = support.take(x)
    assert torch.equal(taken, x[support.index(dim)])
    assert taken.numel() == support.size(dim) == round(support.ratio(dim) * dim)
    moved = support.add(x, torch.ones_like(taken))
    assert torch.equal(moved[support.index(dim)], taken + 1.0)
    assert int((moved != x).sum()) == taken.numel()
    x[support.index(dim)] += 1.0
    assert not torch.equal(x[support.index(dim)], taken), "a copy: the model moves on while an exchange lasts"


@given(seed=seeds, parts=st.integers(2, 9))
@examples(12)
def test_both_ends_change_by_opposite_bits(seed, parts):
    """In randomly rounded int4, over more exchanges than parts: the sum of models is preserved within rounding, and flows bit for bit."""
    agreed = ExchangeCodec(Fp16(), Int4(), 0.0, clip, parts=parts)
    pet, phase = Pet(0.2), Phase(0, 4, 0.1)
    ours, theirs = gaussian(seed, "ours"), gaussian(seed, "theirs")
    books = opened(ours), opened(theirs)
    for turn in range(parts + 1):
        chance = generator(seed, turn)
        support = Fragments(parts).select(ours, None, seed, turn)
        request = agreed.encode_request(ours, support, chance)
        there, values = agreed.decode_request(request, DIM, torch.float32)
        assert there == support
        response, v = agreed.encode_difference(theirs[there.index(DIM)] - values, DIM, chance)
        assert torch.equal(agreed.decode_response(response, support, DIM, torch.float32)[0], v)
        gain = pet.edge.gain(0.5, support.ratio(DIM), phase)
        ours, first = average(pet.edge, books[0], ours, [Effect("theirs", support, v, 0.5, gain)])
        theirs, second = average(pet.edge, books[1], theirs, [Effect("ours", support, -v, 0.5, gain)])
        books = first, second
        assert torch.equal(first.total, -second.total)
    assert all(bool(Fragment(part, parts).take(first.total).any()) for part in range(parts)), "every part was exchanged"


def test_a_cut_other_than_the_agreed_one_is_refused():
    """Otherwise a member could make others allocate flows of any length, or read a part that does not exist."""
    support = Fragment(1, PARTS)
    data = codec.encode(torch.zeros(support.size(DIM)), support, Float32(), DIM, generator(0))

    def decoded(payload, parts, dim=DIM):
        return codec.decode(payload, dim, torch.float32, [Float32()], parts=parts)

    assert decoded(data, PARTS)[0] == support
    for agreed in (0, PARTS + 1):
        with pytest.raises(ValueError, match="bad_support"):
            decoded(data, agreed)
    past = data[: HEADER.size] + FRAGMENT.pack(PARTS, PARTS) + data[HEADER.size + FRAGMENT.size :]
    with pytest.raises(ValueError, match="bad_support"):
        decoded(past, PARTS)
    for wrong in (data[:-1], data + b"\0", data[: HEADER.size + 1]):
        with pytest.raises(ValueError, match="bad_length"):
            decoded(wrong, PARTS)
    with pytest.raises(ValueError, match="bad_support"):
        decoded(HEADER.pack(1, 7, 1, 2) + FRAGMENT.pack(0, 3), 3, dim=2)


@pytest.mark.parametrize("bad", [(0, 1), (2, 2), (-1, 3), (0, 2**16)])
def test_a_fragment_must_be_one_of_the_parts(bad):
    with pytest.raises(ValueError, match="need 2 <= parts"):
        Fragment(*bad)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden_payloads(), indent=1) + "\n")
