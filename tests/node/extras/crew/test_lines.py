"""Frames to other stages wait in order, each once, and a frame that cannot be sent is dropped: the machine asks again."""

import trio

from starling.gossip.errors import PeerUnreachable
from starling.gossip.wire.frames import decode
from starling.gossip.wire.schema import Backward
from starling.node.extras.crew.daemon.lines import MAX_FRAMES, Lines
from tests.harness.virtual import virtual

CREW = bytes(8)


class Slow:
    """A network on which each frame takes ten seconds, and those whose payload is `broken` fail."""

    def __init__(self):
        self.sent = []

    async def send(self, peer, lane, frame):
        await trio.sleep(10.0)
        if b"broken" in frame:
            raise PeerUnreachable(peer, "broken")
        self.sent.append(decode(lane, peer, frame).micro)


def result(micro, payload=b"", crew=CREW):
    return Backward(crew, 1, 0, micro, payload)


@virtual
async def test_a_frame_waits_once_and_is_sent_again_after_it_was_sent():
    network = Slow()
    lines = Lines(network, lambda: CREW)
    lines.send("p1", result(9))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lines.serve)
        await trio.sleep(1.0)
        for _ in range(8):
            for frame in (result(0), result(1, b"broken"), result(2), result(3, crew=bytes(9))):
                lines.send("p1", frame)
            await trio.sleep(1.0)
        await trio.sleep(30.0)
        assert network.sent == [0, 2], "none before it serves, none of another crew, and none twice"
        lines.send("p1", result(0))
        await trio.sleep(11.0)
        assert network.sent == [0, 2, 0]
        for micro in range(2 * MAX_FRAMES):
            lines.send("p1", result(micro))
        await trio.sleep(20.0 * MAX_FRAMES)
        assert network.sent[3:] == list(range(MAX_FRAMES)), "no more wait than that"
        nursery.cancel_scope.cancel()
