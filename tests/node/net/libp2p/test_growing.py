"""Bytes that arrive piece by piece are whole in the end, and an announcement takes next to no memory."""

import itertools
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.node.net.libp2p import growing
from starling.node.net.libp2p.growing import RESERVED_BYTES, Growing
from tests.strategies import examples


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=8), reserved=st.integers(1, 300))
@examples(100)
def test_pieces_are_whole_in_the_end_however_they_are_cut(data, cuts, reserved):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "RESERVED_BYTES", reserved)
        frame = Growing(len(data))
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for begin, end in itertools.pairwise(places):
        assert (frame.filled, frame.missing) == (begin, len(data) - begin)
        frame.add(memoryview(data)[begin:end])
    assert not frame.missing
    assert frame.whole() == data


def test_what_is_announced_is_not_memory_and_what_came_is_held_once():
    def most():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

    size, piece = 64 << 20, memoryview(bytes(1 << 20))
    before = most()
    announced = [Growing(size) for _ in range(64)]
    assert most() - before < RESERVED_BYTES * 8
    frame = announced[0]
    while frame.missing:
        frame.add(piece)
    assert most() - before < size + (16 << 20), "never the old and the new memory in full"
    assert frame.whole().nbytes == size
