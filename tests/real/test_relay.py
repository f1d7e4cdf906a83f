"""Peers that cannot be dialled, on real sockets: circuits through a relay, the relay's limits and view, and direct connections."""

import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle

import pytest
import trio

from starling.gossip.errors import ConfigError, PeerUnreachable
from starling.node.net.libp2p import identify, punching, relay
from starling.node.net.libp2p.addresses import parse
from starling.node.net.libp2p.circuit import HOP, STOP, HopMessage, PeerId, Status, StopMessage, framed, raw_of, read_message
from starling.node.net.libp2p.negotiation import Conversation, negotiate
from tests.harness.libp2p_nodes import hang_up, next_frame, node, on_sockets, peer_of, until
from tests.harness.namespaces import homes

pytestmark = [pytest.mark.real]

PUBLIC = "2001:4860::1"


@asynccontextmanager
async def behind_a_relay(*names, mode="small", places=True):
    """Start a relay and peers that cannot be dialled; with reservations at the relay, and known to each other, if `places`."""
    async with AsyncExitStack() as stack:
        middle = await stack.enter_async_context(node("r", relay=mode))
        ends = [await stack.enter_async_context(node(name)) for name in names]
        for each in ends:
            await each.dial(middle.addresses[0])
            middle.learn(each.peer_id, [])
            each.found(hidden=True, host="")
        if places:
            await until(lambda: all(each.announced for each in ends))
            for each in ends:
                for other in ends:
                    if other is not each:
                        each.learn(other.peer_id, other.announced)
        yield (middle, *ends)


@pytest.fixture
def no_nat_opens(monkeypatch):
    """Drop what is sent to the other's port, as between two symmetric NATs."""

    async def connected(_endpoint, _local):
        raise OSError("no answer")

    monkeypatch.setattr(punching, "_connected", connected)


async def ask(network, middle, message):
    """Return a relay's answer to a message."""
    stream = network.links.direct(middle.peer_id).open()
    conversation = Conversation(stream.read, stream.write)
    await negotiate(conversation, [HOP], initiator=True)
    await stream.write(framed(message))
    answer = await read_message(conversation, HopMessage)
    stream.reset()
    return answer.status


@on_sockets
async def test_two_undialable_peers_exchange_through_a_relay_that_sees_ciphertext_only(monkeypatch, no_nat_opens):
    """The bytes that the relay forwards are encrypted end to end."""
    seen = bytearray()

    class Tap:
        def __init__(self, to):
            self.to, self.finish = to, to.finish

        async def write(self, data):
            seen.extend(data)
            await self.to.write(data)

    copy = relay.Relay.copy

    async def tapped(self, circuit, source, first, to, scope):
        await copy(self, circuit, source, first, Tap(to), scope)

    monkeypatch.setattr(relay.Relay, "copy", tapped)
    async with behind_a_relay("a", "b") as (middle, a, b):
        (told,) = a.announced
        assert (parse(told).relay, parse(told).peer) == (middle.peer_id, a.peer_id)
        assert parse(told).port == middle.port
        secret = b"what only the two ends may read " * 4096
        await b.send(a.peer_id, "control", b"knock knock, who is there")
        await a.send(b.peer_id, "exchange", secret)
        assert (await next_frame(a, "control")).peer == b.peer_id
        assert (await next_frame(b, "exchange")).frame == secret
        assert (a.way(b.peer_id), b.way(a.peer_id), b.relay_of(a.peer_id)) == ("relayed", "relayed", middle.peer_id)
        assert middle.circuits == ((b.peer_id, a.peer_id),)
        assert a.origin(b.peer_id) is None, "where it is was not seen"
        assert len(seen) > len(secret)
        assert not any(words in seen for words in (b"knock", b"only the two ends", b"/starling/"))


@on_sockets
async def test_bytes_changed_by_a_relay_end_the_circuit_undelivered(monkeypatch, no_nat_opens):
    armed = trio.Event()

    class Forger:
        def __init__(self, to):
            self.to, self.finish = to, to.finish

        async def write(self, data):
            await self.to.write(bytes(data[:-1]) + bytes([data[-1] ^ armed.is_set()]))

    copy = relay.Relay.copy

    async def forging(self, circuit, source, first, to, scope):
        await copy(self, circuit, source, first, Forger(to), scope)

    monkeypatch.setattr(relay.Relay, "copy", forging)
    async with behind_a_relay("a", "b") as (_, a, b):
        await b.send(a.peer_id, "control", b"before")
        assert (await next_frame(a, "control")).frame == b"before"
        armed.set()
        await b.send(a.peer_id, "control", b"forged")
        await until(lambda: a.way(b.peer_id) is None)
        with trio.move_on_after(0.2):
            pytest.fail(f"{await next_frame(a, 'control')} arrived")


@on_sockets
async def test_bytes_through_a_relay_count_once_under_a_cap(no_nat_opens):
    """They are sent through the connection to the relay."""
    async with behind_a_relay("a", "b") as (_, a, b):
        b.cap(100_000, 0)
        began = trio.current_time()
        await b.send(a.peer_id, "exchange", bytes(150_000))
        assert len((await next_frame(a, "exchange")).frame) == 150_000
        assert 1.0 < trio.current_time() - began < 2.5, "1.5 s, and 3 s if they counted twice"


@on_sockets
async def test_a_relay_for_control_messages_carries_no_exchange(no_nat_opens):
    async with behind_a_relay("a", "b", mode="control") as (_, a, b):
        await b.send(a.peer_id, "control", b"hello")
        await b.send(a.peer_id, "state", bytes(64 << 10))  # a manifest, so that a newcomer can join
        assert (await next_frame(a, "state")).peer == b.peer_id
        assert a.way(b.peer_id) == b.way(a.peer_id) == "control"
        for lane, size in (("exchange", 1), ("state", 1 << 20)):
            with pytest.raises(PeerUnreachable, match="does not carry"):
                await b.send(a.peer_id, lane, bytes(size))


@on_sockets
async def test_a_relay_accepts_members_and_gives_others_a_reason():
    """Requesting does not disconnect anybody."""
    async with behind_a_relay("a", places=False) as (middle, a), node("s") as stranger:
        await until(lambda: a.announced)
        await stranger.dial(middle.addresses[0])
        reserve = HopMessage(type=HopMessage.RESERVE)
        assert await ask(stranger, middle, reserve) == Status.RESERVATION_REFUSED
        nobody = HopMessage(type=HopMessage.CONNECT, peer=PeerId(id=raw_of(peer_of("nobody"))))
        assert await ask(stranger, middle, nobody) == Status.NO_RESERVATION
        assert await ask(stranger, middle, HopMessage(type=HopMessage.STATUS)) == Status.UNEXPECTED_MESSAGE
        for _ in range(12):
            last = await ask(stranger, middle, nobody)
        assert last == Status.RESOURCE_LIMIT_EXCEEDED
        assert await ask(a, middle, reserve) == Status.OK
        middle.found(hidden=True, host="")
        assert await ask(a, middle, reserve) == Status.RESERVATION_REFUSED
        await stranger.send(middle.peer_id, "control", b"still here")
        assert (await next_frame(middle, "control")).peer == stranger.peer_id


@on_sockets
async def test_a_newcomer_joins_through_a_relay_address_and_relays_are_not_chained(no_nat_opens):
    """An invite of a node that nobody can dial."""
    async with behind_a_relay("a") as (middle, a), node("new") as new:
        assert await new.dial(a.announced[0]) == a.peer_id
        assert new.way(a.peer_id) == "relayed"
        await new.send(a.peer_id, "control", b"hello")
        assert (await next_frame(a, "control")).peer == new.peer_id
        (circuit,) = [each for each in new.links.connections() if each.info.relay]
        stream = circuit.open()
        conversation = Conversation(stream.read, stream.write)
        await negotiate(conversation, [HOP], initiator=True)
        await stream.write(framed(HopMessage(type=HopMessage.RESERVE)))
        assert (await read_message(conversation, HopMessage)).status == Status.PERMISSION_DENIED
        await hang_up(middle, a.peer_id)
        await until(lambda: new.way(a.peer_id) is None)
        with pytest.raises(PeerUnreachable, match="has no place there"):
            await new.send(a.peer_id, "control", b"again")
        with pytest.raises(PeerUnreachable, match="not again so soon"):
            await new.send(a.peer_id, "control", b"and again, at once")


@on_sockets
async def test_only_a_requested_relay_may_open_a_circuit():
    async with node("a") as a, node("m") as mallory:
        await mallory.dial(a.addresses[0])
        stream = mallory.links.direct(a.peer_id).open()
        conversation = Conversation(stream.read, stream.write)
        await negotiate(conversation, [STOP], initiator=True)
        await stream.write(framed(StopMessage(type=StopMessage.CONNECT, peer=PeerId(id=raw_of(peer_of("x"))))))
        assert (await read_message(conversation, StopMessage)).status == Status.PERMISSION_DENIED


class Openings:
    """A network of NATs in which two simultaneous connections between the same ports become one."""

    def __init__(self):
        self.waiting = {}

    async def connected(self, endpoint, local):
        if endpoint.port in self.waiting:
            other, taken = self.waiting.pop(endpoint.port)
            taken.set()
            return trio.SocketStream(other)
        mine, other = trio.socket.socketpair()
        self.waiting[local[1]] = other, (taken := trio.Event())
        await taken.wait()
        return trio.SocketStream(mine)


@on_sockets
async def test_a_simultaneous_open_replaces_the_circuit(monkeypatch):
    """The relay tells each end its observed address; the handshake proves identities, and the circuit ends."""
    monkeypatch.setattr(punching, "_connected", Openings().connected)
    monkeypatch.setattr(punching, "LINGER_S", 0.5)
    async with behind_a_relay("a", "b", mode="control") as (middle, a, b):
        await b.send(a.peer_id, "control", b"hello")
        await until(lambda: a.way(b.peer_id) == b.way(a.peer_id) == "direct")
        await until(lambda: not middle.circuits)
        for each in (a, b):
            assert b.peer_id not in each.callers, "nobody came in by the port where we listen"
            assert {c.info.punched for c in each.links.connections()} == {False, True}
        await hang_up(middle, a.peer_id)
        await hang_up(middle, b.peer_id)
        await b.send(a.peer_id, "exchange", b"without it")
        assert (await next_frame(a, "exchange")).frame == b"without it"


@on_sockets
async def test_two_peers_behind_symmetric_nats_connect_by_ipv6(monkeypatch):
    """No router translates IPv6, so the address and port that each end sends are valid."""
    openings, tried = Openings(), []

    async def connected(endpoint, local):
        tried.append((endpoint.host, local[0]))
        if endpoint.protocol == "ip4":
            raise OSError("no answer")
        return await openings.connected(endpoint, local)

    monkeypatch.setattr(punching, "_connected", connected)
    monkeypatch.setattr(identify, "own_ipv6", lambda: PUBLIC)
    async with behind_a_relay("a", "b", mode="control") as (_, a, b):
        await b.send(a.peer_id, "control", b"hello")
        await until(lambda: a.way(b.peer_id) == b.way(a.peer_id) == "direct")
        assert set(tried) == {(PUBLIC, PUBLIC)}, "first, and then nothing else"
        await b.send(a.peer_id, "exchange", b"without it")
        assert (await next_frame(a, "exchange")).frame == b"without it"


@on_sockets
async def test_a_simultaneous_open_uses_ip_versions_of_both_ends_only(monkeypatch):
    tried, mine = [], cycle([PUBLIC, ""])

    async def connected(endpoint, local):
        tried.append((endpoint.host, local[0]))
        return await openings.connected(endpoint, local)

    openings = Openings()
    monkeypatch.setattr(punching, "_connected", connected)
    monkeypatch.setattr(identify, "own_ipv6", lambda: next(mine))
    async with behind_a_relay("a", "b", mode="control") as (_, a, b):
        await b.send(a.peer_id, "control", b"hello")
        await until(lambda: a.way(b.peer_id) == b.way(a.peer_id) == "direct")
        assert set(tried) == {("127.0.0.1", "127.0.0.1")}


@on_sockets
async def test_a_hidden_node_is_dialled_back_where_possible(monkeypatch):
    """If one end can be dialled the other dials it, instead of a simultaneous open."""

    async def connected(_endpoint, _local):
        raise AssertionError("nothing is to be punched")

    monkeypatch.setattr(punching, "_connected", connected)
    async with behind_a_relay("a") as (_, a), node("open") as b:
        a.learn(b.peer_id, b.addresses)
        b.learn(a.peer_id, a.announced)
        await b.send(a.peer_id, "control", b"hello")
        await until(lambda: b.way(a.peer_id) == "direct")


def test_relay_addresses_are_neither_listened_on_nor_announced():
    there = f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_of('r')}/p2p-circuit"

    async def main():
        with pytest.raises(ConfigError, match="goes through a relay"):
            async with node("a", listen=there):
                pass

    trio.run(main)


STOCK = """
import sys, trio
from libp2p import new_host
from libp2p.network.config import ConnectionConfig
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.relay.circuit_v2 import CircuitV2Protocol, CircuitV2Transport, PROTOCOL_ID
from libp2p.relay.circuit_v2.config import RelayConfig
from libp2p.tools.anyio_service.context import background_trio_service
from multiaddr import Multiaddr
async def main():
    listen = [Multiaddr("/ip4/127.0.0.1/tcp/0")]
    host = new_host(listen_addrs=listen, connection_config=ConnectionConfig(min_connections=0, low_watermark=0))
    async with host.run(listen), trio.open_nursery() as nursery:
        protocol = CircuitV2Protocol(host, allow_hop=len(sys.argv) == 1)
        async with background_trio_service(protocol):
            await protocol.event_started.wait()
            address = next(str(each) for each in host.get_addrs())
            print(address if "/p2p/" in address else f"{address}/p2p/{host.get_id()}", flush=True)
            if len(sys.argv) > 1:
                await as_client(host, CircuitV2Transport(host, protocol, RelayConfig()), nursery, *sys.argv[1:])
            await trio.sleep_forever()
async def as_client(host, transport, nursery, relay, target):
    info = info_from_p2p_addr(Multiaddr(relay))
    await host.connect(info)
    await trio.to_thread.run_sync(sys.stdin.readline)
    reserved = await transport.reserve(await host.new_stream(info.peer_id, [PROTOCOL_ID]), info.peer_id, nursery)
    await transport.dial(Multiaddr(f"{relay}/p2p-circuit/p2p/{target}"))
    stream = await host.new_stream(ID.from_base58(target), ["/starling/control/1"])
    await stream.write((5).to_bytes(4, "big") + (b"stock" if reserved else b"none!"))
trio.run(main)
"""


@asynccontextmanager
async def stock(*arguments):
    """Run a py-libp2p host in a separate process; return it and its address: a relay, or a client of a relay and of a peer behind it."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", STOCK, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        yield process, (await process.stdout.receive_some(1000)).decode().strip()
    finally:
        process.kill()
        await process.wait()
        await process.stdin.aclose()
        await process.stdout.aclose()


@pytest.mark.acceptance
@on_sockets
async def test_a_stock_relay_carries_connections(no_nat_opens):
    async with stock() as (_, address), node("a") as a, node("b") as b:
        for each in (a, b):
            await each.dial(address)
            each.found(hidden=True, host="")
        await until(lambda: a.announced and b.announced)
        b.learn(a.peer_id, a.announced)
        await b.send(a.peer_id, "control", b"hello")
        assert (await next_frame(a, "control")).peer == b.peer_id
        assert b.relay_of(a.peer_id) == parse(address).peer


@pytest.mark.acceptance
@on_sockets
async def test_a_stock_peer_reserves_at_a_node_and_reaches_others_through_it(no_nat_opens):
    async with behind_a_relay("a") as (middle, a), stock(middle.addresses[0], a.peer_id) as (process, address):
        peer = parse(address).peer
        middle.learn(peer, [])
        await process.stdin.send_all(b"\n")
        assert (await next_frame(a, "control")).frame == b"stock"
        assert middle.circuits == ((peer, a.peer_id),)
        assert peer in middle._relay.slots.holders(trio.current_time())


BEHIND = """
import sys, trio
from tests.harness.libp2p_nodes import next_frame, node, peer_of
def say(*words):
    print(*words, flush=True)
async def heard():
    return (await trio.to_thread.run_sync(sys.stdin.readline)).strip()
async def main():
    role, relay = sys.argv[1:]
    async with node(role, listen="/ip4/0.0.0.0/tcp/0", relay="control") as me:
        if role == "r":
            for name in ("a", "b"):
                me.learn(peer_of(name), [])
            say(me.addresses[0])
            await heard()
            return
        other = peer_of("b" if role == "a" else "a")
        await me.dial(relay)
        me.found(hidden=True, host="")
        while not me.announced:
            await trio.sleep(0.05)
        say(me.announced[0])
        me.learn(other, [await heard()])
        if role == "b":
            await me.send(other, "control", b"hello")
        while me.way(other) != "direct":
            await trio.sleep(0.05)
        say("direct")
        await me.send(other, "exchange", bytes(3 << 20))
        say(len((await next_frame(me, "exchange")).frame))
        await heard()
trio.run(main)
"""


@pytest.mark.acceptance
@pytest.mark.parametrize("routers", [{}, {"symmetric": (0, 1), "ipv6": True}], ids=["restricted", "symmetric_with_ipv6"])
@on_sockets
async def test_two_nodes_behind_home_routers_connect_directly_after_meeting_at_a_relay(routers):
    """Real address translation and a real simultaneous open of TCP, in network namespaces."""
    with homes(2, **routers) as (there, *behind):
        async with AsyncExitStack() as stack:

            async def start(namespace, *words):
                process = await trio.lowlevel.open_process(
                    ["ip", "netns", "exec", namespace, sys.executable, "-c", BEHIND, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
                stack.push_async_callback(process.wait)
                stack.callback(process.kill)
                return process, (await process.stdout.receive_some(1000)).decode().strip()

            _, relay_at = await start(there, "r", "")
            (a, a_at), (b, b_at) = [await start(*each, relay_at) for each in zip(behind, "ab", strict=True)]
            assert parse(a_at).relay == parse(b_at).relay == parse(relay_at).peer
            await a.stdin.send_all(f"{b_at}\n".encode())
            await b.stdin.send_all(f"{a_at}\n".encode())
            for process in (a, b):
                said, more = b"", b"\n"
                while more and not (len(said.split()) == 2 and said.endswith(b"\n")):
                    more = await process.stdout.receive_some(1000)
                    said += more
                assert said.split() == [b"direct", str(3 << 20).encode()]
