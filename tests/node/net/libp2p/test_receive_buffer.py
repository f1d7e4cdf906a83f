"""Bytes that arrive in pieces are assembled whole, and an announced length allocates almost nothing."""

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.node.net.libp2p import receive_buffer
from starling.node.net.libp2p.receive_buffer import RESERVED_BYTES, ReceiveBuffer
from tests.strategies import examples


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=8), reserved=st.integers(1, 300))
@examples(100)
def test_pieces_are_assembled_correctly_however_they_are_cut(data, cuts, reserved):
    """Fresh memory could contain the right bytes by chance from freed memory; the test prevents that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receive_buffer, "RESERVED_BYTES", reserved)
        patch.setattr(receive_buffer, "_reserved", lambda count: memoryview(bytearray(b"\xaa" * count)))
        frame = ReceiveBuffer(len(data))
        places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
        for begin, end in itertools.pairwise(places):
            assert (frame.filled, frame.missing) == (begin, len(data) - begin)
            frame.add(memoryview(data)[begin:end])
    assert not frame.missing
    assert frame.whole() == data


ANNOUNCED = """
import resource
from starling.node.net.libp2p.receive_buffer import ReceiveBuffer

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

size, piece, before = 64 << 20, memoryview(bytes(1 << 20)), most()
announced = [ReceiveBuffer(size) for _ in range(64)]
print(most() - before)
frame = announced[0]
while frame.missing:
    frame.add(piece)
print(most() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system counts in other units")
def test_announced_lengths_allocate_no_memory_and_received_bytes_are_stored_once():
    """Measured as the peak of a separate process."""
    said = subprocess.run([sys.executable, "-c", ANNOUNCED], check=True, capture_output=True, text=True, timeout=60).stdout
    announced, whole = map(int, said.split())
    assert announced < 8 * RESERVED_BYTES, "64 frames"
    assert whole < (64 << 20) + 16 * RESERVED_BYTES, "never the old and the new memory in full"
