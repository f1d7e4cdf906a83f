"""Noise records interoperate with another implementation in both directions, however the bytes are cut."""

import os

import pytest
import trio

from starling.node.net.libp2p.noise import MAX_PLAIN_BYTES, MAX_RECORD_BYTES, Channel, ChannelBroken
from tests.harness.noise_ends import noise_ends
from tests.harness.virtual import virtual


class Wire:
    """A socket that records sent bytes and receives in pieces of `cut` bytes."""

    def __init__(self, data: bytes = b"", cut: int = 1) -> None:
        self.sent, self.data, self.cut = b"", data, cut

    async def send_all(self, data: memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.sent += data

    async def receive_some(self, limit: int) -> bytes:
        await trio.lowlevel.checkpoint()
        taken, self.data = self.data[: min(self.cut, limit)], self.data[min(self.cut, limit) :]
        return taken


@pytest.mark.parametrize(
    "sizes",
    [(1,), (MAX_PLAIN_BYTES,), (MAX_PLAIN_BYTES + 1,), (12, MAX_PLAIN_BYTES - 12, 12, 500), (1, 900_000, 1), (10, 300_000, 5, 70_000)],
)
@virtual
async def test_pieces_of_any_length_are_sealed_in_full_records_that_another_implementation_opens(sizes):
    mine, theirs = noise_ends()
    pieces = [os.urandom(size) for size in sizes]
    channel = Channel(wire := Wire(), mine, b"")
    await channel.write(*pieces)
    await channel.write(b"and more")
    opened, rest = [], wire.sent
    while rest:
        size = int.from_bytes(rest[:2], "big")
        opened.append(theirs.decrypt(rest[2 : 2 + size]))
        rest = rest[2 + size :]
    assert b"".join(opened) == b"".join(pieces) + b"and more"
    assert [len(plain) for plain in opened[:-2]] == [MAX_PLAIN_BYTES] * (len(opened) - 2), "all but the last are full"


@pytest.mark.parametrize("cut", [1, 3, 5_000, 65_537, 70_000, 1 << 20])
@virtual
async def test_records_of_another_implementation_are_opened_wherever_they_are_cut(cut):
    mine, theirs = noise_ends()
    plain = [b"first", b"", os.urandom(3_000), *([os.urandom(MAX_PLAIN_BYTES)] * 3 if cut > 3 else ()), b"last"]
    records = [theirs.encrypt(each) for each in plain]
    wire = b"".join(len(record).to_bytes(2, "big") + record for record in records)
    channel, opened = Channel(Wire(wire[7:], cut), mine, wire[:7]), []
    while got := await channel.records(1 << 20):
        opened += got
    assert opened == [each for each in plain if each]


@pytest.mark.parametrize("record", [b"\0\0", b"\0\x01x", (MAX_RECORD_BYTES).to_bytes(2, "big") + bytes(MAX_RECORD_BYTES)])
@virtual
async def test_an_invalid_noise_record_ends_the_channel(record):
    mine, _ = noise_ends()
    with pytest.raises(ChannelBroken, match="a record is forged"):
        await Channel(Wire(record, 1 << 20), mine, b"").read()
