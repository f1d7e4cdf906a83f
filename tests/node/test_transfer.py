"""A long download says how far it is."""

from __future__ import annotations

import hashlib

import trio
from trio.testing import MockClock

from gossip.wire.frames import decode, encode
from gossip.wire.schema import MAX_CHUNK_BYTES, Chunk, StateOffer
from node.daemon.transfer import PROGRESS_S, Offered, Transfer
from node.net.api import Inbound


class SlowLine:
    """A peer that gives a chunk in six seconds."""

    peer_id = "me"

    def __init__(self, state: bytes, nursery: trio.Nursery) -> None:
        self._state, self._nursery = state, nursery
        self._send, self._receive = trio.open_memory_channel(10)

    def inbound(self, _lane):
        return self._receive

    async def send(self, peer, lane, frame):
        query = decode("state", "me", frame)
        self._nursery.start_soon(self._answer, peer, query)

    async def _answer(self, peer, query):
        await trio.sleep(6.0)
        part = self._state[query.offset : query.offset + MAX_CHUNK_BYTES]
        await self._send.send(Inbound(peer, "state", encode(Chunk(query.snapshot, query.offset, part))))


class Report:
    def __init__(self):
        self.texts = []

    def event(self, _name, text, **_fields):
        self.texts.append(text)


def test_a_long_download_says_how_far_it_is_now_and_then():
    """Minutes without a word look like a node that hangs."""
    state, report = bytes(5 * MAX_CHUNK_BYTES + 7), Report()

    async def story():
        async with trio.open_nursery() as nursery:
            transfer = Transfer(network=SlowLine(state, nursery), report=report, manifest=lambda _swarm: None)
            await nursery.start(transfer.serve)
            offer = StateOffer(1, 1, 5, len(state), hashlib.sha256(state).digest(), b"")
            began = trio.current_time()
            assert await transfer.download(Offered("peer", offer)) == state
            took_s = trio.current_time() - began
            assert len(report.texts) == 3 <= took_s / PROGRESS_S
            assert [text.split(" of ")[0] for text in report.texts] == ["39 %", "79 %", "100 %"]
            nursery.cancel_scope.cancel()

    trio.run(story, clock=MockClock(autojump_threshold=0))
