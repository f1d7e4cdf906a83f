"""A kit of hostile peers: identities that send what a test gives them, and members that lie in one way.

A `Stranger` is light: it has an address and a key, and no engine. A lying member is a whole node. Its frames are rewritten on their way out
(`tests.harness.swarms.lie`), or it answers in place of its services (`answering`), in memory and on real sockets:
`tests.harness.lying_node` is a process whose node lies in this way.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, cycle, islice

import trio

from starling.gossip.errors import PeerUnreachable
from starling.gossip.seeds import derive
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import MAX_RECORDS, Acknowledge, Busy, Hello, Lane, Message, Probe, Record, Request, Solicit, Spread, Sync
from starling.node.identity import Identity
from starling.node.net.api import Inbound
from starling.node.net.libp2p import Libp2pNetwork
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import MemoryNetwork, address_of

NO_VIEW = bytes(8)


def key(*parts: object) -> Identity:
    """Return an identity, the same for the same parts."""
    return Identity.from_seed(derive(0, "hostile", *map(str, parts)).to_bytes(32, "big"))


class Stranger:
    """A peer on the network that knows the swarm's id and its members' addresses."""

    def __init__(self, hub: MemoryHub, swarm: str, name: str = "stranger") -> None:
        self.identity, self._name, self._swarm = key(name), name, swarm
        self.peer = self.identity.peer_id
        self._network = hub.join(self.peer)

    async def tell(self, victim: str, *messages: Message | bytes, lane: Lane = "control") -> None:
        """Send messages or raw frames to a peer; ignore a refusal."""
        try:
            await self._network.dial(address_of(victim))
            for message in messages:
                frame = message if isinstance(message, bytes) else encode(message)
                await self._network.send(victim, lane, frame)
        except PeerUnreachable:
            return

    async def be_a_member(self, victims: Callable[[], Sequence[str]], swarm_time: float) -> None:
        """Greet the victims each second and answer their probes, with this time, until cancelled; answer nothing else."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._acknowledge, swarm_time)
            while True:
                for victim in victims():
                    await self.tell(victim, Hello(self.record(self.identity), NO_VIEW, swarm_time))
                await trio.sleep(1.0)

    async def _acknowledge(self, swarm_time: float) -> None:
        async for inbound in self._network.inbound("control"):
            message = decode("control", inbound.peer, inbound.frame)
            if isinstance(message, Probe):
                await self.tell(inbound.peer, Acknowledge(message.nonce, NO_VIEW, swarm_time))

    def record(self, identity: Identity, incarnation: int = 1, version: int = 0, status: str = "alive") -> Record:
        """Return a record signed by that identity."""
        named = identity.peer_id
        return identity.sign_record(Record(named, self._swarm, incarnation, version, status, (address_of(named),), b"", b""))

    async def keep_saying(self, records: Iterable[Record], victims: Sequence[str], per_s: float) -> None:
        """Send records to the victims in rotation, this many per second, until cancelled or at their end."""
        for victim, record in zip(cycle(victims), records, strict=False):
            await self.tell(victim, Spread((record,)))
            await trio.sleep(1.0 / per_s)

    def versions(self) -> Iterator[Record]:
        """Yield records of an alternately present and absent peer: newer versions of one incarnation."""
        for version in count():
            yield self.record(self.identity, 1, version, ("alive", "left")[version % 2])

    def lives(self) -> Iterator[Record]:
        """Yield records of an alternately present and absent peer, with a new incarnation each time."""
        for life in count(1):
            yield self.record(self.identity, life)
            yield self.record(self.identity, life, 1, "left")

    def comings_and_goings(self, identities: int) -> Iterator[Sync]:
        """Yield frames in which ever new identities join, then leave."""
        for lap in count():
            some = [key(self._name, lap, each) for each in range(identities)]
            yield Sync(tuple(self.record(each) for each in some))
            yield Sync(tuple(self.record(each, version=1, status="left") for each in some))

    def fresh_records(self, identities: int = 800) -> Iterator[Spread]:
        """Yield frames filled to the limit with fresh records of non-existent peers, in rotation."""
        keys = [key(self._name, each) for each in range(identities)]
        by_turns = ((each, version) for version in count() for each in keys)
        while True:
            yield Spread(tuple(self.record(each, version=version) for each, version in islice(by_turns, MAX_RECORDS)))


Answer = Callable[[Message], list[Message] | None]
"""What a liar sends back at once in place of what its services would; None: it leaves the message to them."""


def answering(network: MemoryNetwork | Libp2pNetwork, lane: Lane, answer: Answer) -> None:
    """Let a member answer everything on one lane in this way, and start nothing of its own there."""
    inbox, send = network.inbound(lane), network.send
    put = inbox.put

    async def say(peer: str, message: Message) -> None:
        with suppress(PeerUnreachable):
            await send(peer, lane, encode(message))

    def arrived(inbound: Inbound) -> tuple[str, ...]:
        answers = answer(decode(lane, inbound.peer, inbound.frame))
        for message in answers or ():
            trio.lowlevel.spawn_system_task(say, inbound.peer, message)
        return put(inbound) if answers is None else ()

    async def sent(peer: str, on: Lane, frame: bytes) -> None:
        if on != lane or not isinstance(decode(lane, "", frame), Request | Solicit):
            await send(peer, on, frame)

    inbox.put, network.send = arrived, sent


def saying(reason: str, by: int) -> Answer:
    """Answer every request for an exchange with this refusal, for a round this much later than its own (negative: earlier)."""

    def answer(message: Message) -> list[Message] | None:
        match message:
            case Request(inc=inc, seq=seq, round=round):
                return [Busy(inc, seq, reason, max(0, round + by))]
            case Solicit(inc=inc, round=round):
                return [Busy(inc, 0, reason, max(0, round + by))]
        return None

    return answer


def late(by: int) -> Answer:
    """Answer every request for an exchange as late, by this many rounds."""
    return saying("late", by)


useless = saying("busy", 0)
"""Whoever asks for an exchange is told that it is busy: of no use, and nothing false; what a lie may cost at most."""


def silent(message: Message) -> list[Message] | None:
    """Answer no request for an exchange."""
    return [] if isinstance(message, Request | Solicit) else None
