"""Exchanges of subspaces other than coordinates: the same payload format, antisymmetry and refusals.

The golden payloads are written by `python -m tests.gossip.compress.test_subspaces`, for a new kind only: an old line never changes.
"""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Effect
from starling.gossip.compress import codec
from starling.gossip.compress.header import ATOMS, HEADER, LISTING, Kind
from starling.gossip.compress.quantize import Float32, Fp16, Int4
from starling.gossip.compress.select.dct import Atoms, DctTopK, _table
from starling.gossip.compress.select.low_rank import Factors, LowRank, Matrix
from starling.gossip.compress.support import Indices
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.edge_ledger import average, opened
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.rng import generator
from starling.robust.clip import clip
from tests.strategies import examples, seeds

GOLDEN = Path(__file__).parents[2] / "golden" / "subspaces.json"
DIM = 200
CHUNK = 32
AGREED = LowRank(1, (Matrix(5, 6, 10), Matrix(70, 12, 10)), saving=1.0)
SELECTORS = {"atoms": DctTopK(0.1, CHUNK), "atoms_anywhere": DctTopK(0.1, CHUNK, per_chunk=False), "factors": AGREED}
SUPPORTS = {
    "atoms": Atoms(CHUNK, Indices(torch.tensor([0, 1, 40, 199]))),
    "left": Factors(AGREED.matrices, (torch.eye(6)[:, :1], torch.eye(12)[:, 3:4]), left=True),
    "right": Factors(AGREED.matrices, (torch.eye(10)[:, 2:3], -torch.eye(10)[:, 9:]), left=False),
}


def gaussian(*labels, dtype=torch.float32):
    return torch.randn(DIM, generator=generator(0, "subspaces", *labels), dtype=dtype)


def golden_payloads():
    """Return golden payloads; values are multiples of 1/16, exact in half precision."""
    payloads = {}
    for name, support in SUPPORTS.items():
        values = (torch.arange(support.size(DIM), dtype=torch.float32) * 37 % 64 - 31) / 16
        for q in (Float32(), Fp16()):
            payloads[f"request {name} {8 * q.size(1)} bits"] = codec.encode(values, support, q, DIM, generator(0)).hex()
    return payloads


def test_payloads_never_change():
    assert json.loads(GOLDEN.read_text()) == golden_payloads()


@pytest.mark.parametrize("name", SELECTORS)
@given(seed=seeds)
@examples(25)
def test_a_request_survives_encoding_bit_for_bit(name, seed):
    """Bit for bit, with the announced size; truncated or lengthened by one byte it is refused."""
    x = gaussian(seed)
    support = SELECTORS[name].select(x, None, seed, 0)
    values = support.take(x)
    data = codec.encode(values, support, Float32(), DIM, generator(0))
    assert len(data) == codec.size(support, Float32(), DIM)
    there, decoded = codec.decode(data, DIM, torch.float32, [Float32()], AGREED, CHUNK)
    assert there == support
    assert torch.equal(decoded, values)
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(ValueError, match="bad_length"):
            codec.decode(wrong, DIM, torch.float32, [Float32()], AGREED, CHUNK)


def test_an_unexpected_low_rank_request_is_refused():
    data = codec.encode(torch.zeros(SUPPORTS["left"].size(DIM)), SUPPORTS["left"], Float32(), DIM, generator(0))
    assert codec.decode(data, DIM, torch.float32, [Float32()], AGREED, CHUNK)[0] == SUPPORTS["left"]
    for other in (None, LowRank(9, AGREED.matrices)):
        with pytest.raises(ValueError, match="bad_support"):
            codec.decode(data, DIM, torch.float32, [Float32()], other)


@pytest.mark.parametrize("agreed", [0, 2, 1024])
def test_atoms_of_an_unknown_chunk_size_are_refused_before_a_table_is_made(agreed):
    """A table of 1,024 cosines costs 8 MB and 47 ms, so the manifest sets the chunk size, not a peer."""
    data = codec.encode(torch.zeros(4), SUPPORTS["atoms"], Float32(), DIM, generator(0))
    _table.cache_clear()
    with pytest.raises(ValueError, match=r"^bad_support$"):
        codec.decode(data, DIM, torch.float32, [Float32()], None, agreed)
    assert _table.cache_info().currsize == 0


def test_a_count_is_checked_before_allocating():
    data = HEADER.pack(1, Kind.ATOMS, Float32().code, DIM) + ATOMS.pack(64) + LISTING.pack(2**32 - 1, 2**32 - 1)
    with pytest.raises(ValueError, match="bad_support"):
        codec.decode(data, DIM, torch.float32, [Float32()], None, 64)


@pytest.mark.parametrize("name", SELECTORS)
@given(seed=seeds, theta=st.sampled_from([0.3, 0.5, 0.9]))
@examples(15)
def test_an_exchange_changes_both_ends_by_opposite_bits(name, seed, theta):
    """The whole transaction: request, response in clipped int4, and both ends' updates. Flows sum to zero exactly, so the mean model
    follows the mean gradient.
    """
    codec = ExchangeCodec(Fp16(), Int4(), 5.0, clip, AGREED, CHUNK)
    pet = MIXERS.build("mix", "pet", {"kappa": 0.3, "flow_limit": 3.0}).edge
    xs, ledgers = [gaussian(seed, end) for end in range(2)], [opened(torch.zeros(DIM))] * 2
    for turn in range(4):
        before = torch.stack(xs).double()
        initiator, responder = turn % 2, 1 - turn % 2
        support = SELECTORS[name].select(xs[initiator], None, seed + turn, turn)
        request = codec.encode_request(xs[initiator], support, generator(seed, turn))
        heard, theirs = codec.decode_request(request, DIM, torch.float32)
        response, v = codec.encode_difference(heard.take(xs[responder]) - theirs, DIM, generator(seed, turn, "answer"))
        read, _ = codec.decode_response(response, support, DIM, torch.float32)
        assert torch.equal(read, v)
        for end, about, value in ((initiator, support, read), (responder, heard, -v)):
            effect = Effect("other", about, value, theta, 0.25)
            xs[end], ledgers[end] = average(pet, ledgers[end], xs[end], [effect])
        assert torch.equal(ledgers[0].total, -ledgers[1].total)
        moved = torch.stack(xs).double() - before
        assert moved.abs().sum() > 0
        torch.testing.assert_close(moved.sum(0), torch.zeros(DIM).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SELECTORS)
def test_two_ends_converge(name):
    """Each exchange averages the difference within its subspace; a hundred leave almost none."""
    codec = ExchangeCodec(Fp16(), Int4(), 0.0, clip, AGREED, CHUNK)
    xs = [gaussian("agree", end) for end in range(2)]
    for turn in range(100):
        met = xs[turn % 2] - xs[1 - turn % 2]
        support = SELECTORS[name].select(met, None, turn, turn)
        heard, theirs = codec.decode_request(codec.encode_request(xs[turn % 2], support, generator(turn)), DIM, torch.float32)
        _, v = codec.encode_difference(heard.take(xs[1 - turn % 2]) - theirs, DIM, generator(turn, "answer"))
        xs[turn % 2], xs[1 - turn % 2] = support.add(xs[turn % 2], 0.5 * v), support.add(xs[1 - turn % 2], -0.5 * v)
    assert (xs[0] - xs[1]).norm() < 2e-2  # fp16 requests round the difference, however large it is
    assert xs[0].norm() > 5.0


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden_payloads(), indent=1) + "\n")
