"""Activations between stages: golden bytes, equal values at both ends, and payloads that no honest stage sends."""

import pytest
import torch

from starling.gossip.compress.activations import MAX_NUMBERS, Cache, codec, decode, encode

DIRECT = {"float32": 0.0, "bfloat16": 4e-3, "int8": 1e-2, "int4": 0.15}


def chance():
    return torch.Generator().manual_seed(0)


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", DIRECT)
def test_both_ends_decode_equal_activations_with_the_codec_s_error(name):
    h = drawn(4, 16, 8)
    data, sent = encode(h, codec(name), chance())
    seen, samples = decode(data, codec(name), 4)
    assert torch.equal(seen, sent)
    assert samples == ()
    assert float((seen - h).norm() / h.norm()) <= DIRECT[name]


def test_golden_bytes():
    h = torch.tensor([[0.0, -1.0], [0.5, 4.0]])
    assert encode(h, codec("float32"), chance())[0].hex() == "01010202000000" + "02000000" + "00000000000080bf0000003f00008040"
    assert encode(h, codec("bfloat16"), chance())[0].hex() == "01060202000000" + "02000000" + "000080bf003f8040"
    first, _ = encode(h, codec("delta4"), chance(), Cache(64), (7, 9))
    listed = "0700000000000000" + "0900000000000000" + "0101"
    assert first.hex() == "01850202000000" + "02000000" + listed + "000000bc00380044"
    assert encode(h, codec("int8"), chance())[0].hex()[:22] == "0104020200000002000000"


@pytest.mark.parametrize(("name", "most"), [("delta8", 1e-3), ("delta4", 5e-3), ("delta2", 5e-2)])
def test_the_error_of_differences_vanishes_and_caches_stay_equal(name, most):
    ours, theirs, h, samples = Cache(1 << 20), Cache(1 << 20), drawn(4, 100), (5, 6, 7, 5)
    h[3] = h[0]
    for visit in range(6):
        x = h * (1.0 + 0.1 * 0.5**visit)
        data, sent = encode(x, codec(name), chance(), ours, samples)
        seen, told = decode(data, codec(name), 4, theirs)
        assert torch.equal(seen, sent)
        assert told == samples
        ours.commit()
        theirs.commit()
        assert all(torch.equal(ours.get(sample), theirs.get(sample)) for sample in samples)
    assert float((seen - x).norm() / x.norm()) < most
    assert len(data) < 4 * 100 * 2


def test_an_abandoned_step_does_not_change_the_cache_and_a_full_cache_stores_no_more():
    cache = Cache(2 * 100 * 2)
    encode(drawn(3, 100), codec("delta4"), chance(), cache, (1, 2, 3))
    assert [cache.get(each) is not None for each in (1, 2, 3)] == [True, True, False]
    cache.clear()
    assert cache.get(1) is None
    assert cache.held == 0


def test_payloads_that_no_honest_stage_sends_are_refused_by_reason():
    how = codec("float32")
    good, _ = encode(drawn(4, 3), how, chance())
    nan = bytearray(good)
    nan[-4:] = b"\x00\x00\xc0\x7f"
    huge = good[:3] + (4).to_bytes(4, "little") + (MAX_NUMBERS).to_bytes(4, "little")
    for data, reason in (
        (b"", "bad_length"),
        (good[:-1], "bad_length"),
        (good + b"x", "bad_length"),
        (b"\x02" + good[1:], "bad_version"),
        (good[:1] + b"\x04" + good[2:], "bad_codec"),
        (good[:2] + b"\x00", "bad_shape"),
        (good[:2] + b"\x09" + bytes(36), "bad_shape"),
        (good[:3] + bytes(8), "bad_shape"),
        (huge, "bad_shape"),
        (bytes(nan), "not_finite"),
    ):
        with pytest.raises(ValueError, match=reason):
            decode(data, how, 4)
    with pytest.raises(ValueError, match="bad_shape"):
        decode(good, how, 5)
    with pytest.raises(ValueError, match="not_finite"):
        encode(torch.tensor([[float("nan")]]), how, chance())


def test_differences_of_unsent_samples_are_refused():
    how, sender, receiver = codec("delta4"), Cache(1 << 20), Cache(1 << 20)
    first, _ = encode(drawn(2, 8), how, chance(), sender, (1, 2))
    second, _ = encode(drawn(2, 8), how, chance(), sender, (1, 2))
    with pytest.raises(ValueError, match="unknown_sample"):
        decode(second, how, 2, receiver)
    decode(first, how, 2, receiver)
    with pytest.raises(ValueError, match="known_sample"):
        decode(first, how, 2, receiver)
    flags = 3 + 8 + 16
    with pytest.raises(ValueError, match="bad_samples"):
        decode(first[:flags] + b"\x02" + first[flags + 1 :], how, 2, Cache(1 << 20))
    infinite = first[: flags + 2] + b"\x00\x7c" + first[flags + 4 :]
    with pytest.raises(ValueError, match="not_finite"):
        decode(infinite, how, 2, Cache(1 << 20))
