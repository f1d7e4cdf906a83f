"""Attacks on the transport from a separate process: it reads one line per command, NAME SECONDS TIMES, and answers with one line of JSON.

`python -m tests.harness.attackers HOST PORT PEER`. The letters are those of the threat model. Each attack goes on for its seconds and for
at least so many repetitions. It uses addresses that no honest peer has.
"""

import json
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count

import trio

from starling.gossip.wire.schema import LANES, MAX_FRAME_BYTES
from starling.node.net.libp2p.negotiation import HandshakeFailed
from starling.node.net.libp2p.noise import Channel, ChannelBroken, Identity, secure
from tests.harness.libp2p_nodes import data, lane_opened
from tests.harness.victim import BOOM

OUT_OF_REACH = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, HandshakeFailed, ChannelBroken)
FIRST_LINE = b"\x13/multistream/1.0.0\n"


class Attacker:
    """Knows the victim, and counts its own actions.

    Args:
        host, port, peer: of the victim.
        source: address to connect from.
    """

    def __init__(self, host: str, port: int, peer: str, source: str = "127.9.0.1") -> None:
        self._host, self._port, self._peer = host, port, peer
        self._source = source
        self._names = count()
        self.done = 0
        self.refused = 0

    async def tcp(self) -> trio.SocketStream:
        raw = trio.socket.socket()
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await raw.bind((self._source, 0))
            await raw.connect((self._host, self._port))
        except BaseException:
            raw.close()
            raise
        return trio.SocketStream(raw)

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Channel]:
        stream = await self.tcp()
        try:
            with trio.fail_after(10):
                _, channel, _ = await secure(stream, Identity.from_seed(os.urandom(32)), self._peer)
            yield channel
        finally:
            await trio.aclose_forcefully(stream)

    async def repeat(self, once: Callable[[], Awaitable[object]], seconds: float, times: int, at_once: int = 8) -> None:
        end = trio.current_time() + seconds

        async def loop() -> None:
            while trio.current_time() < end or self.done < times:
                self.done += 1
                try:
                    await once()
                except (*OUT_OF_REACH, trio.TooSlowError):
                    self.refused += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(loop)


async def read_to_the_end(channel: Channel, patience_s: float = 1.0) -> None:
    with trio.move_on_after(patience_s), suppress(*OUT_OF_REACH):
        while await channel.read():
            pass


async def a_handler_error(attacker: Attacker) -> None:
    for lane in LANES:
        async with attacker.channel() as channel:
            await lane_opened(channel, lane)
            for frame in (os.urandom(100), b"", b"\x93\xff\xff", BOOM):
                await channel.write(data(len(frame).to_bytes(4, "big") + frame))
            await read_to_the_end(channel)


async def b_many_connections(attacker: Attacker) -> None:
    async with attacker.channel():
        pass


async def c_no_window(attacker: Attacker) -> None:
    async with attacker.channel() as channel:
        await lane_opened(channel, "exchange")
        if attacker.done % 2:
            await channel.write(data(MAX_FRAME_BYTES["exchange"].to_bytes(4, "big")))
        for _ in range(0, 600 << 20, 60_000):
            await channel.write(data(bytes(60_000)))


async def d_random_bytes(attacker: Attacker) -> None:
    async with await attacker.tcp() as stream:
        before = (b"", FIRST_LINE, FIRST_LINE + b"\x07/noise\n", FIRST_LINE + b"\x07/noise\n\x00\x20" + bytes(32))
        await stream.send_all(before[attacker.done % len(before)] + os.urandom(attacker.done % 997))
        with trio.move_on_after(0.05):
            await stream.receive_some(4096)


async def e_random_muxer_bytes(attacker: Attacker) -> None:
    async with attacker.channel() as channel:
        await channel.write(os.urandom(5_000))
        await read_to_the_end(channel)


async def f_long_muxer_frames(attacker: Attacker) -> None:
    """F: lengths of 4 GiB and 17 MiB, with a few bytes of each."""
    for length in (0xFFFFFFFF, 17 << 20):
        async with attacker.channel() as channel:
            await lane_opened(channel, "exchange")
            await channel.write(data(b"a few bytes", length=length))
            await read_to_the_end(channel)


async def h_slow_negotiation(attacker: Attacker) -> None:
    async with attacker.channel() as channel:
        for stream in range(1, 81, 2):
            await channel.write(struct.pack("!BBHII", 0, 0, 1, stream, 1) + b"\x13")
        await read_to_the_end(channel)


async def i_flood_of_openings(attacker: Attacker) -> None:
    openings = b"".join(struct.pack("!BBHII", 0, 1, 1, stream, 0) for stream in range(1, 20_001, 2))
    async with attacker.channel() as channel:
        await channel.write(openings)
        await read_to_the_end(channel)


async def j_rapid_connects(attacker: Attacker) -> None:
    stream = await attacker.tcp()
    await trio.aclose_forcefully(stream)


async def k_unknown_protocols(attacker: Attacker) -> None:
    async with attacker.channel() as channel:
        proposal = b"\x13/multistream/1.0.0\n\x0f/ipfs/id/1.0.0\n"
        await channel.write(struct.pack("!BBHII", 0, 1, 1, 1, 0) + data(proposal))
        await channel.write(data(os.urandom(60_000)))
        await read_to_the_end(channel, 0.2)
    async with attacker.channel() as channel:
        await lane_opened(channel, "exchange")
        await channel.write(data(MAX_FRAME_BYTES["exchange"].to_bytes(4, "big")))
        with trio.move_on_after(0.5):
            for _ in range(0, MAX_FRAME_BYTES["exchange"] - 60_000, 60_000):
                await channel.write(data(bytes(60_000)))
        await trio.sleep(0.5)


async def held(attacker: Attacker, opened: Callable[[], Awaitable[object]], seconds: float, times: int) -> None:
    async def one() -> None:
        while True:
            try:
                await opened()
            except (*OUT_OF_REACH, trio.TooSlowError):
                pass
            attacker.refused += 1
            await trio.sleep(0.2)

    async with trio.open_nursery() as nursery:
        for _ in range(times):
            nursery.start_soon(one)
        while attacker.done < times:  # noqa: ASYNC110
            await trio.sleep(0.01)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()


async def half_open(attacker: Attacker) -> None:
    async with await attacker.tcp() as stream:
        attacker.done += 1
        await stream.receive_some(1)


async def sybil(attacker: Attacker) -> None:
    attacker.done += 1
    async with attacker.channel() as channel:
        while await channel.read():
            pass


ONCE = {
    "A": a_handler_error,
    "B": b_many_connections,
    "C": c_no_window,
    "D": d_random_bytes,
    "E": e_random_muxer_bytes,
    "F": f_long_muxer_frames,
    "H": h_slow_negotiation,
    "I": i_flood_of_openings,
    "J": j_rapid_connects,
    "K": k_unknown_protocols,
}
HELD = {"G": half_open, "L": sybil}


# Often enough to exhaust each resource: more connections than places, more half-open ones than handshakes.
TIMES = {"A": 4, "B": 150, "C": 8, "D": 100, "E": 40, "F": 16, "G": 400, "H": 16, "I": 16, "J": 300, "K": 8, "L": 150}
MORE = {"A": 40, "B": 1000, "C": 100, "D": 3000, "E": 400, "F": 200, "G": 400, "H": 100, "I": 200, "J": 3000, "K": 50, "L": 400}


async def carry_out(attacker: Attacker, name: str, seconds: float, times: int) -> None:
    if name in ONCE:
        await attacker.repeat(lambda: ONCE[name](attacker), seconds, times)
    else:
        await held(attacker, lambda: HELD[name](attacker), seconds, times)


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  whoever started us reads it


async def main() -> None:
    host, port, peer = sys.argv[1:]
    say("ready")
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as commands:
        while line := (await commands.receive_some(4096)).decode():
            name, seconds, times = line.split()
            attacker = Attacker(host, int(port), peer)
            await carry_out(attacker, name, float(seconds), int(times))
            say(json.dumps({"done": attacker.done, "refused": attacker.refused}))


if __name__ == "__main__":
    trio.run(main)
