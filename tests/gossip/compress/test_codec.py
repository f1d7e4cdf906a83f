"""Payloads are exact, canonical, bounded, and stable for as long as the version byte says 1.

The golden payloads are written by `python -m tests.gossip.compress.test_codec`, for a new kind, code or use of random numbers only: an old
line never changes. Lines of int8 and int4 without "dithered" come from an earlier use of random numbers; only their decoded values count.
"""

import json
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.compress import codec
from starling.gossip.compress.catalogue import QUANTIZERS
from starling.gossip.compress.header import BLOCKS, HEADER, LISTING, VERSION, Kind
from starling.gossip.compress.quantize import Float32, Float64, Fp16, Int4, Int8
from starling.gossip.compress.support import Blocks, Full, Indices
from starling.gossip.rng import generator
from tests.fuzz.targets.payloads import REQUEST, RESPONSE
from tests.harness.codecs import BY_CODE
from tests.strategies import examples, seeds

DIM = 200
ALLOWED = tuple(BY_CODE.values())
GOLDEN = Path(__file__).parents[2] / "golden" / "payloads.json"


def indices(*values):
    return Indices(torch.tensor(values, dtype=torch.int64))


WISH = indices(2, 3, 150, 199)
SUPPORTS = {
    "full": Full(),
    "blocks": Blocks(7, 1, 2),
    "short_block": next(b for b in (Blocks(7, start, 1) for start in range(4)) if b.size(DIM) == 8),
    "rice": indices(3, 17, 64, 65, 199),
    "bitmap": indices(*range(0, DIM, 2)),
}
FIRST = {"float32": Float32(), "float64": Float64(), "fp16": Fp16(), "int8": Int8(), "int4": Int4()}
LATER = {name: make() for name, make in QUANTIZERS.items() if name not in (*FIRST, "identity") and not name.endswith("_nearest")}


def values_on(support):
    """Return multiples of 1/16 below 2: exact in half precision, so the golden bytes test the code, not the rounding."""
    return (torch.arange(support.size(DIM), dtype=torch.float32) * 37 % 64 - 31) / 16


def golden_payloads():
    """Return name -> payload in hexadecimal digits. All supports and directions with the first quantizers; two supports with the others."""
    payloads = {}
    for name, q in (FIRST | LATER).items():
        dithered = " dithered" if q.draws(1) else ""
        for support_name, support in SUPPORTS.items():
            if name in FIRST or support_name in ("full", "short_block"):
                data = codec.encode(values_on(support), support, q, DIM, generator(0))
                payloads[f"request {support_name} {name}{dithered}"] = data.hex()
        if name in FIRST:
            values = values_on(SUPPORTS["blocks"])
            payloads[f"response {name}{dithered}"] = codec.encode_values(values, q, DIM, generator(0))[0].hex()
            payloads[f"response wish {name}{dithered}"] = codec.encode_values(values, q, DIM, generator(0), WISH)[0].hex()
    return payloads


def check_hostile(data):
    """Assert what fuzzed decoders guarantee: bytes are refused with a known reason, or are in bounds and canonical."""
    implied = data[1:2] in (bytes([Kind.IMPLIED]), bytes([Kind.IMPLIED_AND_WISH]))
    (RESPONSE if implied else REQUEST).run(b"\0" + data)


def test_payloads_never_change():
    written = json.loads(GOLDEN.read_text())
    for name, payload in golden_payloads().items():
        assert written[name] == payload, name


@pytest.mark.parametrize("name", json.loads(GOLDEN.read_text()))
def test_all_golden_payloads_decode_to_their_values(name):
    """Also where today's encoder uses random numbers differently. (The meaning is exact in the float formats.)"""
    direction, *middle, quantizer_name = name.removesuffix(" dithered").split()
    q = (FIRST | LATER)[quantizer_name]
    data = bytes.fromhex(json.loads(GOLDEN.read_text())[name])
    if direction == "request":
        support, values = codec.decode(data, DIM, torch.float32, [q])
        assert support == SUPPORTS[middle[0]]
    else:
        support = SUPPORTS["blocks"]
        values, wish = codec.decode_values(data, support, DIM, torch.float32, [q], wish_limit=20)
        assert wish == (WISH if middle else None)
    meant = values_on(support)
    assert (values - meant).square().sum() <= 2 * q.omega * meant.square().sum()


@pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS)
@pytest.mark.parametrize("q", FIRST.values(), ids=FIRST)
class TestEveryKindOfPayload:
    def test_round_trip_gives_the_support_and_what_the_quantizer_makes_of_the_values(self, support, q):
        values = values_on(support)
        data = codec.encode(values, support, q, DIM, generator(1))
        decoded_support, decoded = codec.decode(data, DIM, torch.float32, [q])
        assert decoded_support == support
        assert torch.equal(decoded, q.decode(q.encode(values, generator(1)), values.numel()).float())

    def test_both_ends_decode_the_same_bits(self, support, q):
        """The responder decodes its own answer, the initiator the received one: v and −v must cancel exactly."""
        data, at_responder = codec.encode_values(values_on(support), q, DIM, generator(1))
        at_initiator, _ = codec.decode_values(bytes(bytearray(data)), support, DIM, torch.float32, [q])
        assert not (at_initiator + -at_responder).any()

    def test_a_payload_s_size_is_known_in_advance(self, support, q):
        values = values_on(support)
        assert len(codec.encode(values, support, q, DIM, generator(1))) == codec.size(support, q, DIM)
        for wish in (None, WISH):
            data, said = codec.encode_values(values, q, DIM, generator(1), wish)
            tail = b"" if wish is None else wish.describe(DIM)
            assert len(data) == codec.values_size(support, q, DIM) + len(tail)
            assert torch.equal(said, codec.decode_values(data, support, DIM, torch.float32, [q], wish_limit=DIM)[0])

    def test_inputs_are_not_modified(self, support, q):
        values = values_on(support)
        before = values.clone()
        codec.encode(values, support, q, DIM, generator(1))
        codec.encode_values(values, q, DIM, generator(1), WISH)
        assert torch.equal(values, before)
        assert torch.equal(WISH.indices, torch.tensor([2, 3, 150, 199]))

    def test_every_truncation_and_extension_is_refused(self, support, q):
        data = codec.encode(values_on(support), support, q, DIM, generator(1))
        for end in range(len(data)):
            with pytest.raises(ValueError, match=r"^(bad_length|bad_support|bad_indices)$"):
                codec.decode(data[:end], DIM, torch.float32, ALLOWED)
        with pytest.raises(ValueError, match=r"^(bad_length|bad_support)$"):
            codec.decode(data + b"\0", DIM, torch.float32, ALLOWED)


@pytest.mark.parametrize("name", [name for name in golden_payloads() if "full" not in name and "bitmap" not in name])
def test_every_bit_flip_is_refused_or_stays_in_bounds(name):
    """Flips in the framing, the support, and the first and last values: a quarter of each byte's bits, in rotation."""
    data = bytes.fromhex(golden_payloads()[name])
    for position in {*range(min(len(data), 48)), *range(max(0, len(data) - 16), len(data))}:
        for bit in range(position % 4, 8, 4):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            check_hostile(bytes(flipped))


@given(data=st.binary(max_size=120))
@examples(100)
def test_arbitrary_bytes_are_refused_or_stay_in_bounds(data):
    check_hostile(data)


@given(seed=seeds, dim=st.integers(1, 500), data=st.data())
@examples(40)
def test_indices_and_requested_coordinates_survive_encoding(seed, dim, data):
    chosen = data.draw(st.sets(st.integers(0, dim - 1), min_size=1, max_size=60).map(sorted))
    support = indices(*chosen)
    values = torch.randn(len(chosen), generator=generator(seed))
    request = codec.encode(values, support, Float32(), dim, generator(0))
    decoded_support, decoded = codec.decode(request, dim, torch.float32, [Float32()])
    assert torch.equal(decoded, values)
    assert decoded_support == (Full() if len(chosen) == dim else support)
    response = codec.encode_values(values, Float32(), dim, generator(0), wish=support)[0]
    decoded, wish = codec.decode_values(response, support, dim, torch.float32, [Float32()], wish_limit=len(chosen))
    assert torch.equal(decoded, values)
    assert wish == support


def header(kind, name="float32", dim=DIM, version=VERSION):
    return HEADER.pack(version, kind, FIRST[name].code, dim)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "bad_length"),
        (header(Kind.FULL)[:-1], "bad_length"),
        (header(Kind.FULL, version=2), "bad_version"),
        (header(Kind.FULL, dim=DIM + 1), "wrong_dim"),
        (HEADER.pack(VERSION, Kind.FULL, 99, DIM), "unknown_codec"),
        (header(Kind.FULL, name="int8"), "unknown_codec"),  # a known code, but not the manifest's
        (header(9), "bad_support"),
        (header(Kind.IMPLIED) + bytes(4 * DIM), "bad_support"),  # a request must contain its support
        (header(Kind.BLOCKS) + BLOCKS.pack(0, 4, 1, 64) + bytes(256), "bad_support"),
        (header(Kind.BLOCKS) + BLOCKS.pack(0, 0, 0, 64), "bad_support"),
        (header(Kind.BLOCKS) + BLOCKS.pack(0, 0, 4, 64) + bytes(4 * DIM), "bad_support"),  # a support with all coordinates must be Full
        (header(Kind.BLOCKS) + BLOCKS.pack(0, 0, 1, 0), "bad_support"),
        (header(Kind.BLOCKS) + BLOCKS.pack(0, 0, 1, 64) + bytes(260), "bad_length"),
        (header(Kind.INDICES) + LISTING.pack(0, 1) + b"\0", "bad_support"),
        (header(Kind.INDICES) + LISTING.pack(DIM, 26) + bytes(26 + 4 * DIM), "bad_support"),
        (header(Kind.INDICES) + LISTING.pack(1, 3) + bytes(3 + 4), "bad_indices"),
        (header(Kind.FULL) + bytes(4 * DIM - 4) + struct.pack("<f", float("inf")), "not_finite"),
        (header(Kind.FULL, name="float64") + bytes(8 * DIM - 8) + struct.pack("<d", 1e300), "not_finite"),
    ],
)
def test_a_bad_request_is_refused_with_its_reason(data, reason):
    with pytest.raises(ValueError, match=f"^{reason}$"):
        codec.decode(data, DIM, torch.float32, [Float32(), Float64()])


@pytest.mark.parametrize(("limit", "accepted"), [(0, False), (3, False), (4, True)])
def test_requested_coordinates_are_limited(limit, accepted):
    support = SUPPORTS["blocks"]
    data = codec.encode_values(values_on(support), Int4(), DIM, generator(0), WISH)[0]
    if accepted:
        assert codec.decode_values(data, support, DIM, torch.float32, [Int4()], limit)[1] == WISH
    else:
        with pytest.raises(ValueError, match="bad_wish"):
            codec.decode_values(data, support, DIM, torch.float32, [Int4()], limit)


def test_a_response_cannot_have_its_own_support():
    support = SUPPORTS["rice"]
    data = codec.encode(values_on(support), support, Fp16(), DIM, generator(0))
    with pytest.raises(ValueError, match="bad_support"):
        codec.decode_values(data, support, DIM, torch.float32, [Fp16()])


def test_a_support_that_covers_everything_has_one_encoding():
    values = torch.zeros(DIM)
    for support in (Blocks(3, 2, 4), indices(*range(DIM))):
        assert codec.encode(values, support, Fp16(), DIM, generator(0)) == codec.encode(values, Full(), Fp16(), DIM, generator(0))


@pytest.mark.parametrize(
    "described",
    [
        header(Kind.FULL, dim=10**9),
        header(Kind.BLOCKS, dim=10**9) + BLOCKS.pack(0, 0, 10**7, 64),
        header(Kind.BLOCKS, dim=10**9) + BLOCKS.pack(0, 0, 1, 1) + bytes(4),
        header(Kind.INDICES, dim=10**9) + LISTING.pack(2**32 - 1, 2**32 - 1),
        header(Kind.INDICES, dim=10**9) + LISTING.pack(10**8, 0),
        header(Kind.INDICES, dim=10**9) + LISTING.pack(1, 1) + b"\xff" + bytes(4),
    ],
)
def test_a_few_bytes_cannot_cause_a_large_allocation(described):
    """Every count is compared with the received bytes before memory is allocated or a mask is sorted."""
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"^bad_(length|support|indices)$"):
        codec.decode(described, 10**9, torch.float32, [Float32()])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 16


def test_decoding_gives_the_dtype_the_model_has():
    for q in ALLOWED:
        data = codec.encode(values_on(Full()), Full(), q, DIM, generator(0))
        for dtype in (torch.float32, torch.float64):
            assert codec.decode(data, DIM, dtype, [q])[1].dtype == dtype


if __name__ == "__main__":
    old = json.loads(GOLDEN.read_text())
    GOLDEN.write_text(json.dumps(old | {n: p for n, p in golden_payloads().items() if n not in old}, indent=1) + "\n")
