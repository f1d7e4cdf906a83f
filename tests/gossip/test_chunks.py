"""Chunks of a model from several peers: complete if any peer has them all, and always the agreed model."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.chunk_times import LEAST_S
from starling.gossip.chunks import AGAIN, DIGEST_BYTES, TRIES, Download, count, digests, root

CHUNK = 8


def download(state):
    listed = digests(state, CHUNK)
    return Download(len(state), root(listed), listed, CHUNK)


def part(state, index):
    return state[index * CHUNK : (index + 1) * CHUNK]


@given(st.binary(min_size=1, max_size=100))
def test_every_chunk_has_a_digest_and_all_chunks_form_the_state(state):
    listed, chunks = digests(state, CHUNK), download(state)
    assert len(listed) == DIGEST_BYTES * count(len(state), CHUNK)
    assert sum(chunks.length(index) for index in range(chunks.missing)) == len(state)
    for index in range(count(len(state), CHUNK)):
        assert chunks.is_right(index, part(state, index))
        assert not chunks.is_right(index, part(state, index) + b"x")


@pytest.mark.parametrize("listed", [b"", bytes(32), bytes(65), bytes(96)])
def test_another_number_of_digests_than_of_chunks_is_refused(listed):
    with pytest.raises(ValueError, match="bytes of digests for 2 chunks"):
        Download(2 * CHUNK, root(listed), listed, CHUNK)


def test_a_single_chunk_needs_no_list():
    chunks = Download(3, root(digests(b"abc")))
    index = chunks.take("a", 0.0)
    assert chunks.arrived("a", index, b"abd", 0.0) == "wrong"
    assert chunks.arrived("b", chunks.take("b", 0.0), b"abc", 0.0) == "new"
    assert (bytes(chunks.data), chunks.missing) == (b"abc", 0)


HOW = st.sampled_from(["honest", "honest", "silent", "liar", "fickle"])


@given(st.binary(min_size=1, max_size=120), st.lists(HOW, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_download_completes_with_one_honest_peer_and_blames_only_liars(state, kinds, chance: random.Random):
    chunks = download(state)
    kind = {f"p{number}": each for number, each in enumerate(kinds)}
    under_way, blamed, arrived = [], set(), 0
    for now in range(2000):
        if not chunks.missing or all(map(chunks.is_gone, kind)):
            break
        peer = chance.choice(sorted(kind))
        if chance.random() < 0.6 and (index := chunks.take(peer, now)) is not None:
            under_way.append((peer, index))
            assert under_way.count((peer, index)) == 1
        elif under_way:
            peer, index = under_way.pop(chance.randrange(len(under_way)))
            how = kind[peer] if kind[peer] != "fickle" else chance.choice(["honest", "silent"])
            if how == "silent":
                chunks.failed(peer, index, now)
                continue
            came = chunks.arrived(peer, index, part(state, index) if how == "honest" else bytes(chunks.length(index) + 1), now)
            arrived += came == "new" and chunks.length(index)
            if came == "wrong":
                blamed.add(peer)
                assert chunks.is_gone(peer)
                assert chunks.take(peer, now) is None
        assert chunks.received == arrived
    assert blamed <= {peer for peer, each in kind.items() if each == "liar"}
    if "honest" in kinds:
        assert bytes(chunks.data) == state
    assert chunks.missing or bytes(chunks.data) == state


def test_a_peer_that_keeps_failing_is_not_requested_and_a_chunk_resets_the_count():
    state = bytes(range(9 * CHUNK))
    chunks = download(state)
    for _ in range(TRIES - 1):
        chunks.failed("a", chunks.take("a", 0.0), 0.0)
    assert chunks.take("a", 0.0) == 0, "what failed is asked for first"
    assert chunks.arrived("a", 0, part(state, 0), 0.0) == "new"
    for _ in range(TRIES):
        assert not chunks.is_gone("a")
        chunks.failed("a", chunks.take("a", 0.0), 0.0)
    assert chunks.is_gone("a")
    assert chunks.take("b", 0.0) == 1, "others go on"


def test_earlier_chunks_are_verified_and_only_missing_ones_requested():
    state = bytes(range(5 * CHUNK))
    chunks = download(state)
    found = [(0, part(state, 0)), (1, b"otherwise"), (3, part(state, 3)), (3, part(state, 3)), (4, b""), (99, b"x" * CHUNK)]
    assert chunks.recover(found) == 2
    assert chunks.received == 2 * CHUNK
    assert [chunks.take("a", 0.0) for _ in range(4)] == [1, 2, 4, None]


def test_only_late_chunks_are_requested_from_a_second_peer():
    state = bytes(range(3 * CHUNK))
    chunks = download(state)
    assert [chunks.take("a", 0.0), chunks.take("b", 0.0), chunks.take("slow", 0.0)] == [0, 1, 2]
    assert chunks.arrived("a", 0, part(state, 0), 1.0) == "new"
    assert chunks.arrived("b", 1, part(state, 1), 1.2) == "new"
    late_s = chunks.times.usual_s()
    assert late_s == pytest.approx(1.1 + 4.0 * 0.5 * 1.1)
    assert chunks.take("a", late_s) is None
    assert chunks.take("a", late_s + 0.1) == 2
    assert chunks.take("b", late_s + 0.1 + AGAIN * late_s) is None, "two owe it"
    assert chunks.take("b", late_s + 0.2 + AGAIN * late_s) == 2, "a second silent peer does not hold up the end either"
    assert chunks.arrived("a", 2, part(state, 2), 11.0) == "new"
    assert chunks.take("b", 99.0) is None
    assert chunks.arrived("slow", 2, part(state, 2), 11.0) == "known"
    assert bytes(chunks.data) == state


def test_the_only_chunk_is_requested_from_the_next_peer_before_anybody_has_sent_one():
    chunks = Download(3, root(digests(b"abc")))
    assert chunks.take("silent", 0.0) == 0
    assert chunks.take("b", LEAST_S) is None
    assert chunks.take("b", LEAST_S + 0.1) == 0
    assert chunks.arrived("b", 0, b"abc", LEAST_S + 0.2) == "new"
    chunks.times.end(LEAST_S + 0.3)
    assert (chunks.times.let_down, chunks.times.delivered) == ({"silent"}, {"b"})
