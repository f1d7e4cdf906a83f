"""Payloads of exchanges, and the parts they are made of: quantised values and coded indices."""

import math
import struct
from collections.abc import Iterator

import numpy as np
import torch

from starling.gossip.api import Quantizer
from starling.gossip.compress import codec
from starling.gossip.compress import indices as coding
from starling.gossip.compress.catalogue import QUANTIZERS
from starling.gossip.compress.header import HEADER, TRAILER, VERSION, Kind
from starling.gossip.compress.select.dct import Atoms
from starling.gossip.compress.select.low_rank import LowRank, Matrix
from starling.gossip.compress.support import Blocks, Fragment, Full, Indices, Support
from starling.gossip.mix.memories import Decay, MemoryExchange, MemoryMessage, joined, split_memory
from starling.gossip.rng import generator
from tests.fuzz.target import Target, reason_of
from tests.harness.codecs import BY_CODE
from tests.harness.memory_ends import BETAS, CODEC, VectorMemory
from tests.harness.texts import words

REASONS = {
    *words(
        "bad_length bad_version bad_support bad_indices bad_basis bad_wish wrong_dim unknown_codec not_finite bad_scale bad_code",
        "bad_padding",
    )
}
DIMS = (200, 1, 7, 1300, 70_001)
DTYPES = (torch.float32, torch.float64)
CODECS = {q.code: q for q in (*BY_CODE.values(), *(make() for make in QUANTIZERS.values()))}
ALLOWED = tuple(CODECS.values())
REENCODES = {1, 3, 6, 17, 18, 19, 20, 21}  # codes whose decoded values have no other encoding
LOW_RANK = LowRank(1, (Matrix(3, 12, 9), Matrix(120, 5, 10)), saving=1.0)
WISH_LIMIT = 20
CHUNK = 16
PARTS = 5


def _indices(*numbers: int) -> Indices:
    return Indices(torch.tensor(numbers, dtype=torch.int64))


SUPPORTS: dict[str, Support] = {
    "full": Full(),
    "blocks": Blocks(7, 1, 2),
    "small_blocks": Blocks(2**64 - 1, 3, 5, 3),
    "one": _indices(199),
    "rice": _indices(3, 17, 64, 65, 199),
    "per_block": _indices(*range(30), *range(60, 195)),
    "bitmap": _indices(*range(0, 200, 2)),
    "clustered": _indices(64, 66, 67, 69, 71, 72, 75, 77, 79),
    "atoms": Atoms(CHUNK, _indices(0, 1, 16, 30, 199)),
    "fragment": Fragment(4, PARTS),
    "factors": LOW_RANK.start(3),
    "left_factors": LOW_RANK.select(torch.linspace(-1.0, 1.0, 200), None, 3, 0),
}
RESPONSE_SUPPORTS = (SUPPORTS["blocks"], SUPPORTS["full"], SUPPORTS["rice"], SUPPORTS["atoms"], SUPPORTS["factors"])


def _values(count: int) -> torch.Tensor:
    return (torch.arange(count, dtype=torch.float32) * 37 % 64 - 31) / 16


def _request(data: bytes) -> bool:
    """First byte: the vector's length, type, and whether low-rank exchanges are agreed on."""
    setting = data[0] if data else 0
    dim, dtype = DIMS[setting % 8 % len(DIMS)], DTYPES[setting // 8 % 2]
    low_rank = LOW_RANK if dim == 200 and setting < 128 else None
    payload = data[1:]
    try:
        support, values = codec.decode(payload, dim, dtype, ALLOWED, low_rank, CHUNK, parts=PARTS)
    except ValueError as error:
        reason_of(error, REASONS)
        return False
    quantizer = CODECS[payload[2]]
    assert values.dtype == dtype
    assert values.shape == (support.size(dim),)
    assert bool(torch.isfinite(values).all())
    described = len(payload) - quantizer.size(values.numel())
    again = codec.encode(values, support, quantizer, dim, generator(0))
    assert again[:described] == payload[:described], "a support has one encoding"
    assert again == payload or quantizer.code not in REENCODES
    _use(support, values, dim)
    return True


def _use(support: Support, values: torch.Tensor, dim: int) -> None:
    """Use of a received support in an engine."""
    assert 0.0 < support.ratio(dim) <= 1.0
    x = torch.zeros(dim, dtype=values.dtype)
    assert support.take(x).shape == values.shape
    moved = support.add(x, values.clamp(-1e3, 1e3))
    assert moved.shape == (dim,)
    assert bool(torch.isfinite(moved).all())
    assert moved.double().norm() <= 1.2 * values.clamp(-1e3, 1e3).double().norm(), "no longer than its coefficients"
    x[support.index(dim)] += support.spread(values.clamp(-1e3, 1e3), dim)
    assert torch.equal(x, moved)


def _requests() -> Iterator[bytes]:
    for code in sorted(CODECS):
        for support in SUPPORTS.values() if code in (1, 4) else (SUPPORTS["full"], SUPPORTS["rice"]):
            yield b"\0" + codec.encode(_values(support.size(200)), support, CODECS[code], 200, generator(0))
    for setting, dim in enumerate(DIMS[1:], start=1):
        if dim < 10_000:
            yield bytes([setting + 8]) + codec.encode(_values(dim), Full(), CODECS[4], dim, generator(0))
        if dim > 64:
            support = Blocks(1, 2, 3)
            payload = codec.encode(_values(support.size(dim)), support, CODECS[5], dim, generator(0))
            yield bytes([setting]) + payload


def _request_lures() -> Iterator[bytes]:
    atoms = Atoms(1024, _indices(3, 50))
    yield b"\0" + codec.encode(_values(2), atoms, CODECS[1], 200, generator(0))
    blocks = Blocks(1, 0, 3, 2)  # of a permutation of 35,001
    yield b"\4" + codec.encode(_values(6), blocks, CODECS[1], 70_001, generator(0))
    for setting, dim in enumerate(DIMS):
        for kind in Kind:
            for code in (1, 4, 17):
                yield bytes([setting]) + HEADER.pack(VERSION, kind, code, dim) + b"\xff" * 40
                yield bytes([setting]) + HEADER.pack(VERSION, kind, code, dim) + bytes(40)


REQUEST = Target(_request, _requests, _request_lures, most_bytes=2048, spare_bytes=4 << 20, reach=260)


def _response(data: bytes) -> bool:
    """First byte: the request's support, the type of the vector, and whether wished supports are read."""
    setting = data[0] if data else 0
    support, dtype = RESPONSE_SUPPORTS[setting % 8 % len(RESPONSE_SUPPORTS)], DTYPES[setting // 8 % 2]
    limit = 0 if setting >= 128 else WISH_LIMIT
    try:
        values, wish = codec.decode_values(data[1:], support, 200, dtype, ALLOWED, limit)
    except ValueError as error:
        reason_of(error, REASONS)
        return False
    assert values.dtype == dtype
    assert values.shape == (support.size(200),)
    assert bool(torch.isfinite(values).all())
    if wish is not None:
        assert 1 <= wish.size(200) <= limit
        assert int(wish.indices[-1]) < 200
    if data[3] in REENCODES:
        assert codec.encode_values(values, CODECS[data[3]], 200, generator(0), wish)[0] == data[1:]
    _use(support, values, 200)
    return True


def _responses() -> Iterator[bytes]:
    wish = _indices(2, 3, 150, 199)
    for setting, support in enumerate(RESPONSE_SUPPORTS):
        for code in (1, 2, 4, 17) if setting else sorted(CODECS):
            values = _values(support.size(200))
            yield bytes([setting]) + codec.encode_values(values, CODECS[code], 200, generator(0))[0]
            yield bytes([setting + 8]) + codec.encode_values(values, CODECS[code], 200, generator(0), wish)[0]


RESPONSE = Target(_response, _responses, most_bytes=2048, spare_bytes=2 << 20, reach=160)


COORDINATES = tuple(SUPPORTS[name] for name in ("full", "blocks", "rice", "fragment"))
HALF = (Decay(slice(0, 90), *BETAS), Decay(slice(90, 200), BETAS[0], None))  # a part has no second moment


def _end(setting: int) -> MemoryExchange:
    """An end whose memory is of three gradients or empty, with second moments everywhere or in a part."""
    decays = HALF if setting & 8 else None
    memory = VectorMemory(torch.zeros(200), torch.zeros(200), 0, decays)
    for step in range(0 if setting & 16 else 3):
        memory.step(_values(200).roll(step))
    return MemoryExchange(memory, CODEC)


def _memory(data: bytes) -> bool:
    """First byte: the support, what this end remembers, and whether it is asked or answered."""
    setting = data[0] if data else 0
    support, end = COORDINATES[setting % 8 % len(COORDINATES)], _end(setting)
    try:
        before, codes, age = split_memory(data[1:])
        said = end.parsed(codes, age, support, 200)
    except ValueError as error:
        reason_of(error, REASONS | {"bad_memory"})
        return False
    assert before + said.values + TRAILER.pack(age, len(said.values)) == data[1:]
    memory = end.memory
    mean, square = (part.clone() for part in memory.read())
    if setting & 32:
        learned = end.answered(support, 0.5, said)
    else:
        answered, learned = end.answer(support, 0.5, said, generator(0))
        assert end.parsed(answered.values, float(answered.age), support, 200) == answered
    assert all(map(torch.equal, memory.read(), (mean, square))), "nothing is learned before it is committed"
    end.learn(learned)
    m, v = memory.read()
    assert bool(torch.isfinite(m).all())
    assert bool(torch.isfinite(v).all())
    assert bool((v >= 0.0).all())
    where = torch.zeros(200)
    where[support.index(200)] = 1.0
    assert torch.equal(m[where == 0.0], mean[where == 0.0]), "only where the exchange was about it"
    assert torch.equal(v[where == 0.0], square[where == 0.0])
    return True


def _memories() -> Iterator[bytes]:
    for setting, support in enumerate(COORDINATES):
        for kind in (0, 8, 16, 24, 32, 40, 48, 56):
            said = _end(kind & 8).told(support, generator(0))
            for told in (said, MemoryMessage(said.age, said.mean), MemoryMessage(0)):
                yield bytes([setting + kind]) + joined(b"payload", told)


def _memory_lures() -> Iterator[bytes]:
    said = _end(0).told(Full(), generator(0))
    for told in (MemoryMessage(said.age), MemoryMessage(0, said.mean, said.square)):
        yield b"\0" + joined(b"payload", told)
    for age, length in ((math.nan, 0), (-1.0, 0), (math.inf, 0), (0.5, 0), (1.0, 2**32 - 1), (2.0**24 + 1, 0), (-0.0, 0)):
        yield b"\0" + TRAILER.pack(age, length)
        yield b"\0" + said.values + TRAILER.pack(age, min(length, len(said.values)))
    for setting in (0, 16, 32, 48):
        for age in (0, 1, 2, (1 << 40) - 1):
            loud = CODEC.mean.encode(_values(200) * 3e37, generator(0))
            yield bytes([setting]) + joined(b"", MemoryMessage(age, loud, said.square))
            yield bytes([setting]) + joined(b"", MemoryMessage(age, said.mean, CODEC.square.encode(torch.full((200,), 3e38), generator(0))))


MEMORY = Target(_memory, _memories, _memory_lures, most_bytes=2048, spare_bytes=4 << 20, reach=60)


def _listing(data: bytes) -> bool:
    """First four bytes: how many numbers below what. All layouts, canonical, strictly increasing."""
    if len(data) < 4:
        return False
    count, dim = struct.unpack_from("<HH", data)
    try:
        found = coding.decode(data[4:], count, dim)
    except ValueError as error:
        reason_of(error, {"bad_indices"})
        return False
    assert found.shape == (count,)
    assert found.dtype == np.int64
    assert found[0] >= 0
    assert found[-1] < dim
    assert (np.diff(found) > 0).all()
    assert coding.encode(found, dim) == data[4:], "a list has one encoding"
    assert coding.size(found, dim) == len(data) - 4
    return True


def _listings() -> Iterator[bytes]:
    rng = np.random.Generator(np.random.Philox(key=5))
    lists = (
        [(np.arange(count), count) for count in (1, 3, 200)]
        + [(np.sort(rng.choice(dim, count, replace=False)), dim) for count, dim in ((1, 60_000), (40, 3000), (300, 900), (600, 60_000))]
        + [
            (np.concatenate([np.arange(0, 500), np.arange(500, 60_000, 400)]), 60_000),
            (np.concatenate([np.arange(start, start + 40) for start in range(0, 60_000, 6400)]), 60_000),
            (np.concatenate([start + np.sort(rng.choice(64, 9, replace=False)) for start in range(0, 60_000, 2560)]), 65_535),
        ]
    )
    for numbers, dim in lists:
        yield struct.pack("<HH", len(numbers), dim) + coding.encode(numbers.astype(np.int64), dim)


LISTING = Target(_listing, _listings, most_bytes=2048, spare_bytes=4 << 20, reach=70)


def _quantised(data: bytes) -> bool:
    """First bytes: which quantizer, how many values."""
    if len(data) < 3:
        return False
    quantizer: Quantizer = ALLOWED[data[0] % len(ALLOWED)]
    count = int.from_bytes(data[1:3], "little")
    try:
        values = quantizer.decode(data[3:], count)
    except ValueError as error:
        reason_of(error, {"bad_length", "not_finite", "bad_scale", "bad_code", "bad_padding"})
        return False
    assert len(data) - 3 == quantizer.size(count)
    assert values.shape == (count,)
    assert values.dtype in DTYPES
    assert bool(torch.isfinite(values).all())
    assert torch.equal(quantizer.decode(memoryview(data)[3:], count), values), "from a view as from bytes"
    assert quantizer.code not in REENCODES or quantizer.encode(values, generator(0)) == data[3:]
    return True


def _all_quantised() -> Iterator[bytes]:
    for number, quantizer in enumerate(ALLOWED):
        for count in (0, 1, 65, 200):
            yield bytes([number]) + count.to_bytes(2, "little") + quantizer.encode(_values(count), generator(0))


QUANTISED = Target(_quantised, _all_quantised, most_bytes=1024, spare_bytes=4 << 20, reach=55)

assert max(Kind) == Kind.FRAGMENT, "a new kind of payload needs a seed"
