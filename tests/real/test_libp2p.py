"""The real network between honest peers on loopback: frames, connections, addresses, shutdown."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress

import pytest
import trio

from starling.gossip.errors import ConfigError, LocalProtocolError, PeerUnreachable
from starling.gossip.wire.schema import LANES, MAX_FRAME_BYTES
from starling.node.config.schema import LimitsSection, NodeConfig
from starling.node.net.api import Connected, Disconnected, Inbound, Network
from starling.node.net.libp2p import addresses, open_network
from starling.node.net.libp2p.destinations import Destinations
from starling.node.net.libp2p.dialler import MAX_RUMORED_DIALS
from starling.node.net.libp2p.sockets import listen_on
from tests.harness.libp2p_nodes import (
    LOOPBACK,
    Remembered,
    hang_up,
    next_event,
    next_frame,
    node,
    nodes,
    on_sockets,
    peer_of,
    seed_of,
    until,
)

pytestmark = [pytest.mark.real]


@on_sockets
async def test_frames_pass_whole_on_every_lane_both_ways():
    """From the empty frame to the largest that a lane's tests can afford; the contract is that of starling.node.net.api."""
    async with nodes("a", "b") as (a, b):
        network: Network = a
        assert await network.dial(b.addresses[0]) == b.peer_id == peer_of("b")
        for lane in LANES:
            for one, other in ((a, b), (b, a)):
                for frame in (b"", b"x", bytes(range(256)) * 1024):
                    await one.send(other.peer_id, lane, frame)
                    assert await next_frame(other, lane) == Inbound(one.peer_id, lane, frame)
        assert a.traffic[b.peer_id].bytes_sent == b.traffic[a.peer_id].bytes_received == len(LANES) * (1 + (256 << 10))
        with pytest.raises(LocalProtocolError, match="exceed"):
            await a.send(b.peer_id, "control", bytes(MAX_FRAME_BYTES["control"] + 1))


@pytest.mark.slow
@on_sockets
async def test_a_large_frame_does_not_hold_up_another_lane():
    """Probes must pass during a model's transfer, or training would look like a crash."""
    async with nodes("a", "b") as (a, b):
        await a.dial(b.addresses[0])
        await a.send(b.peer_id, "control", b"open the lane")
        await next_frame(b, "control")
        async with trio.open_nursery() as nursery:
            frame = bytes(64 << 20)
            b.learn(a.peer_id, a.addresses)
            nursery.start_soon(a.send, b.peer_id, "exchange", frame)
            await trio.sleep(0.02)
            await a.send(b.peer_id, "control", b"ping")
            assert (await next_frame(b, "control")).frame == b"ping"
            with pytest.raises(trio.WouldBlock):
                b.inbound("exchange").receive_nowait()
            assert (await next_frame(b, "exchange")).frame == frame


@pytest.mark.slow
@on_sockets
async def test_a_cancelled_send_loses_its_frame_and_nothing_else():
    """A deadline in the middle of a frame: the next frame of that lane is whole, and other lanes are unaffected."""
    async with nodes("a", "b", down=4_000_000) as (a, b):
        await a.dial(b.addresses[0])
        await a.send(b.peer_id, "control", b"first")
        with trio.move_on_after(0.1) as patience:
            await a.send(b.peer_id, "exchange", bytes(64 << 20))
        assert patience.cancelled_caught
        await a.send(b.peer_id, "control", b"second")
        await a.send(b.peer_id, "exchange", b"whole")
        assert [(await next_frame(b, "control")).frame for _ in range(2)] == [b"first", b"second"]
        assert (await next_frame(b, "exchange")).frame == b"whole"
        assert await next_event(b) == Connected(a.peer_id)
        with pytest.raises(trio.WouldBlock):
            b.events().receive_nowait()


@on_sockets
async def test_both_ends_hear_of_connections_and_a_send_redials():
    """A disconnection is not a refusal."""
    async with nodes("a", "b") as (a, b):
        a.learn(b.peer_id, ["nonsense", f"/ip4/127.0.0.1/tcp/9/p2p/{a.peer_id}", *b.addresses])
        await a.send(b.peer_id, "control", b"1")
        assert (await next_frame(b, "control")).frame == b"1"
        await hang_up(b, a.peer_id)
        for network, other in ((a, b), (b, a)):
            assert [await next_event(network) for _ in range(2)] == [Connected(other.peer_id), Disconnected(other.peer_id)]
        await a.send(b.peer_id, "control", b"2")
        assert (await next_frame(b, "control")).frame == b"2"


@on_sockets
async def test_a_restarted_peer_is_reached_at_once():
    """Failures are not remembered, since the first second after a restart counts; until then a send fails quickly in one line."""
    async with node("a") as a:
        async with node("b") as b:
            address = b.addresses[0]
            a.learn(b.peer_id, [address])
            await a.send(b.peer_id, "control", b"before")
        assert [await next_event(a) for _ in range(2)] == [Connected(b.peer_id), Disconnected(b.peer_id)]
        start = trio.current_time()
        for _ in range(3):
            with pytest.raises(PeerUnreachable, match="refused") as caught:
                await a.send(b.peer_id, "control", b"x")
            assert "\n" not in str(caught.value)
        assert trio.current_time() - start < 2.0
        async with node("b", listen=address.partition("/p2p")[0]) as again:
            await a.send(again.peer_id, "control", b"after")
            assert (await next_frame(again, "control")).frame == b"after"


@on_sockets
async def test_frames_sent_before_leaving_arrive():
    """Closing the network must not overtake the farewell sent before it."""
    async with node("a") as a:
        async with node("b") as b:
            await b.dial(a.addresses[0])
            await b.send(a.peer_id, "exchange", bytes(2 << 20))
            await b.send(a.peer_id, "control", b"bye")
        assert (await next_frame(a, "control")).frame == b"bye"
        assert len((await next_frame(a, "exchange")).frame) == 2 << 20


@on_sockets
async def test_undialable_addresses_are_explained_in_one_line():
    """Each failure is a PeerUnreachable, since addresses come from strangers."""
    async with nodes("a", "b") as (a, b):
        port = b.addresses[0].split("/")[4]
        stranger = peer_of("stranger")
        for address, why in (
            ("", "not an address"),
            ("/ip4/1.2.3.4/udp/1/quic-v1", "not an address"),
            (f"/ip4/127.0.0.1/tcp/{port}", "not an address"),
            (f"/ip4/127.0.0.1/tcp/70000/p2p/{stranger}", "not an address"),
            (f"/ip4/127.0.0.1/tcp/1/p2p/{stranger}", "refused"),
            (f"/ip4/127.0.0.1/tcp/{port}/p2p/{stranger}", "another peer answers there"),
            (f"/dns4/{'x' * 70}.example/tcp/1/p2p/{stranger}", "label"),
            (a.addresses[0], "itself"),
        ):
            with pytest.raises(PeerUnreachable, match=why) as caught:
                await a.dial(address)
            assert "\n" not in str(caught.value)
        with pytest.raises(PeerUnreachable, match="no known address"):
            await a.send(stranger, "control", b"")


@pytest.mark.slow
@on_sockets
async def test_a_dead_address_among_several_costs_a_quarter_second_at_most():
    """Records list every interface, most of which are unreachable from elsewhere."""
    async with nodes("a", "b") as (a, b):
        silent = socket.create_server(("127.0.0.1", 0), backlog=1)
        with silent:
            a.learn(b.peer_id, [f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}", *b.addresses])
            start = trio.current_time()
            await a.send(b.peer_id, "control", b"x")
            assert trio.current_time() - start < 3.0


@on_sockets
async def test_simultaneous_dials_leave_both_able_to_send():
    """This is common, since two members learn of each other at the same time."""
    async with nodes("a", "b") as (a, b):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.dial, b.addresses[0])
            nursery.start_soon(b.dial, a.addresses[0])
        for i in range(5):
            await a.send(b.peer_id, "control", bytes([i]))
            await b.send(a.peer_id, "control", bytes([i]))
        for network in (a, b):
            assert sorted([(await next_frame(network, "control")).frame[0] for _ in range(5)]) == list(range(5))


@on_sockets
async def test_reported_addresses_are_dialled_once_and_delay_no_known_peer():
    """Sixty-four records of unmet peers, each sent frames repeatedly: one dial per address, and a few at a time."""
    knocks = Counter()
    async with nodes("a", "b") as (a, b), trio.open_nursery() as nursery:
        await b.dial(a.addresses[0])
        await until(lambda: a.links.newest(b.peer_id) is not None)
        doors = await trio.open_tcp_listeners(0, host="127.0.3.1")
        port = doors[0].socket.getsockname()[1]
        for each in range(2, 65):
            doors += await trio.open_tcp_listeners(port, host=f"127.0.3.{each}")

        async def silent(stream):
            knocks[stream.socket.getsockname()[0]] += 1
            await trio.sleep_forever()

        nursery.start_soon(trio.serve_listeners, silent, doors)

        async def insist(each):
            for _ in range(5):
                with suppress(PeerUnreachable), trio.move_on_after(0.3):
                    await a.send(peer_of(f"p{each}"), "control", b"x")
                await trio.sleep(0.05)

        for each in range(1, 65):
            a.learn(peer_of(f"p{each}"), [f"/ip4/127.0.3.{each}/tcp/{port}", f"/ip4/169.254.169.254/tcp/{port}"])
            nursery.start_soon(insist, each)
        await until(lambda: len(knocks) >= MAX_RUMORED_DIALS)
        a.learn(b.peer_id, b.addresses)
        await hang_up(a, b.peer_id)
        await a.send(b.peer_id, "control", b"x")
        assert (await next_frame(b, "control")).frame == b"x"
        await trio.sleep(1.0)
        assert set(knocks.values()) == {1}
        assert len(knocks) == MAX_RUMORED_DIALS  # the others wait for a slot
        nursery.cancel_scope.cancel()


@on_sockets
async def test_a_node_that_does_not_listen_dials_reported_addresses_of_its_owner_s_kind():
    async with nodes("a", "b") as (a, b), node("c", listen="") as c:
        c.learn(b.peer_id, b.addresses)
        with pytest.raises(PeerUnreachable, match="may be dialled"):
            await c.send(b.peer_id, "control", b"x")
        await c.dial(a.addresses[0])
        await c.send(b.peer_id, "control", b"x")
        assert (await next_frame(b, "control")).peer == c.peer_id


@on_sockets
async def test_an_address_of_an_earlier_run_permits_no_other_of_its_kind():
    async with nodes("a", "b") as (a, b), node("c", listen="") as c:
        assert c.met(a.peer_id, a.addresses) == ()
        await c.dial(a.addresses[0], given=False)
        assert c.met(a.peer_id, ("/ip4/203.0.113.9/tcp/1", *a.addresses)) == a.addresses
        c.learn(b.peer_id, b.addresses)
        with pytest.raises(PeerUnreachable, match="may be dialled"):
            await c.send(b.peer_id, "control", b"x")


@on_sockets
async def test_a_reported_host_name_does_not_reach_private_networks():
    """It is checked after resolution: on compose to a neighboring private address, from a liar to any."""
    async with nodes("a", "b") as (a, b):
        named = f"/dns4/localhost/tcp/{addresses.parse(b.addresses[0]).port}"
        a.learn(b.peer_id, [named])
        within, a.dialler.destinations.own = a.dialler.destinations.own, frozenset({"public"})
        with pytest.raises(PeerUnreachable, match="resolves to no address"):
            await a.send(b.peer_id, "control", b"x")
        a.dialler.destinations = Destinations(within)
        await a.send(b.peer_id, "control", b"x")
        await next_frame(b, "control")
        assert all(a.dialler.may_knock(addresses.parse(each)) for each in (named, b.addresses[0])), "somebody answered"


@pytest.mark.slow
@on_sockets
async def test_nothing_is_dialled_without_a_request():
    """py-libp2p's swarm dials up to 100 known peers by itself, which a volunteer's node must not."""
    async with nodes("a", "b") as (a, b):
        for i in range(20):
            a.learn(peer_of(f"p{i}"), b.addresses[0].partition("/p2p")[:1])
        a.learn(b.peer_id, b.addresses)
        await trio.sleep(0.3)
        with pytest.raises(trio.WouldBlock):
            b.events().receive_nowait()


@pytest.mark.slow
@on_sockets
async def test_a_cap_on_bytes_holds_both_ways():
    """1 MB at 2 MB/s takes half a second, sent or received."""
    for caps in ({"up": 2_000_000}, {"down": 2_000_000}):
        async with node("a", up=caps.get("up", 0)) as a, node("b", down=caps.get("down", 0)) as b:
            await a.dial(b.addresses[0])
            start = trio.current_time()
            await a.send(b.peer_id, "exchange", bytes(1_000_000))
            await next_frame(b, "exchange")
            assert 0.35 < trio.current_time() - start < 5.0


@pytest.mark.slow
@on_sockets
async def test_a_cap_changed_during_a_frame_applies_to_its_rest():
    """The megabyte would take twenty seconds at first, then two and a half, and finally almost none."""
    for side in (0, 1):
        async with node("a", up=50_000 * (not side)) as a, node("b", down=50_000 * side) as b, trio.open_nursery() as nursery:
            await a.dial(b.addresses[0])
            changed, caps = (a, b)[side], (lambda rate, side=side: (0, rate) if side else (rate, 0))
            start = trio.current_time()
            nursery.start_soon(a.send, b.peer_id, "exchange", bytes(1_000_000))
            await trio.sleep(0.3)
            changed.cap(*caps(400_000))
            await trio.sleep(0.5)
            with pytest.raises(trio.WouldBlock):
                b.inbound("exchange").receive_nowait()
            changed.cap(*caps(0))
            await next_frame(b, "exchange")
            assert 0.75 < trio.current_time() - start < 1.8


@pytest.mark.slow
@on_sockets
async def test_under_a_small_cap_probes_still_pass_a_model():
    """The model takes seven seconds of this line; a probe behind it waits for half a second, not for all of it."""
    async with nodes("a", "b", up=100_000) as (a, b), trio.open_nursery() as nursery:
        await a.dial(b.addresses[0])
        await a.send(b.peer_id, "control", b"open the lane")
        await next_frame(b, "control")
        start = trio.current_time()
        nursery.start_soon(a.send, b.peer_id, "exchange", bytes(700_000))
        await trio.sleep(0.1)
        await a.send(b.peer_id, "control", b"probe")
        assert (await next_frame(b, "control")).frame == b"probe"
        probe = trio.current_time() - start
        await next_frame(b, "exchange")
        assert probe < (trio.current_time() - start) / 2  # on a quiet machine .11; a busy one delays a probe by seconds


@on_sockets
async def test_addresses_have_the_real_port_and_can_be_replaced():
    """Published addresses must be dialable; behind port forwarding only the owner knows them."""
    async with node("a", listen="/ip4/0.0.0.0/tcp/0") as a:
        endpoint = addresses.parse(a.addresses[0])
        assert endpoint.host != "0.0.0.0"
        assert endpoint.port > 0
        assert endpoint.peer == peer_of("a")
        async with node("b") as b:
            await b.dial(a.addresses[0])


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as one:
        one.bind(("::1", 0))
        return True
    return False


@on_sockets
async def test_by_default_both_versions_of_ip_are_served_at_one_port():
    async with open_network(seed_of("a"), NodeConfig().listen, [], LimitsSection(), Remembered()) as a:
        port = addresses.parse(a.addresses[0]).port
        assert {addresses.parse(each).port for each in a.addresses} == {port}
        for host in ("127.0.0.1", "::1") if has_ipv6() else ("127.0.0.1",):
            async with node(f"b{host}", listen="") as b:
                await b.dial(f"/ip{4 if '.' in host else 6}/{host}/tcp/{port}/p2p/{a.peer_id}")


@on_sockets
async def test_a_missing_ip_version_is_skipped_unless_it_is_the_only_one_requested(monkeypatch):
    bind = trio.open_tcp_listeners

    async def without_ipv6(port, *, host):
        if ":" in host:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return await bind(port, host=host)

    monkeypatch.setattr(trio, "open_tcp_listeners", without_ipv6)
    async with open_network(seed_of("a"), NodeConfig().listen, [], LimitsSection(), Remembered()) as a:
        assert a.addresses
        assert not any(each.startswith("/ip6") for each in a.addresses)
    with pytest.raises(ConfigError, match="listen: '/ip6/::/tcp/0': Address family"):
        await listen_on(["/ip6/::/tcp/0"])


@on_sockets
async def test_a_node_with_a_new_address_announces_it(monkeypatch):
    report, here = Remembered(), ["192.0.2.7"]
    monkeypatch.setattr(addresses, "interfaces", lambda: here)
    async with node("a", listen="/ip4/0.0.0.0/tcp/0", report=report) as a:
        before, here[:] = a.addresses, ["198.51.100.7"]
        a.look_at_interfaces()
        assert [each.replace("192.0.2.7", "198.51.100.7") for each in before] == list(a.addresses) == list(a.announced)
        a.look_at_interfaces()
        assert report.events == [("addresses_changed", {"addresses": a.addresses})]


@on_sockets
async def test_a_dial_back_verifies_the_peer_s_identity_and_leaves_no_connection():
    async with nodes("a", "b", "c") as (a, b, c):
        ports = {each: addresses.parse(each.addresses[0]).port for each in (a, b, c)}
        assert await a.dial_back(b.peer_id, ports[b]) == ("", False), "whom we do not know we do not dial"
        await b.dial(a.addresses[0])
        assert isinstance(await next_event(b), Connected)
        assert await a.dial_back(b.peer_id, ports[b]) == ("127.0.0.1", True)
        assert await a.dial_back(b.peer_id, ports[c]) == ("127.0.0.1", False), "somebody else listens there"
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            assert await a.dial_back(b.peer_id, unused.getsockname()[1]) == ("127.0.0.1", False)
        assert len(a.links.to(b.peer_id)) == len(b.links.to(a.peer_id)) == 1
        assert (a.callers, b.callers, c.callers) == ((b.peer_id,), (), ())
        with pytest.raises(trio.WouldBlock):
            c.events().receive_nowait()


@on_sockets
async def test_a_hidden_node_announces_nothing_and_others_add_observed_addresses():
    async with node("a") as a:
        own = a.announced
        a.found(hidden=True, host="")
        assert (a.announced, a.addresses) == ((), own)
        a.found(hidden=False, host="8.8.8.8")
        assert a.announced == a.addresses == (f"/ip4/8.8.8.8/tcp/{a.port}/p2p/{a.peer_id}", *own)
        a.found(hidden=False, host="127.0.0.1")
        assert a.announced == own, "it is known already"


@on_sockets
async def test_an_unusable_listen_address_is_an_error_for_the_user():
    """One line with key, value and reason, without a traceback."""
    async with node("a") as a:
        taken = a.addresses[0].partition("/p2p")[0]
        for listen, why in (
            (taken, "in use.*another port"),
            ("/ip4/300.0.0.1/tcp/1", "listen"),
            ("/dns4/example.org/tcp/1", "is a name"),
            ("/ip4/192.0.2.1/tcp/0", "assign"),
        ):
            with pytest.raises(ConfigError, match=why):
                async with node("b", listen=listen):
                    pass


@on_sockets
async def test_closing_is_quick_and_silent_with_many_connections():
    """Stock py-libp2p takes 0.2 s per connection, and raises out of the context manager."""
    names = [f"n{i}" for i in range(24)]
    async with nodes(*names) as others:
        async with node("hub") as hub:
            for other in others:
                await other.dial(hub.addresses[0])
                await other.send(hub.peer_id, "control", b"x")
            start = trio.current_time()
        assert trio.current_time() - start < 2.0


@on_sockets
async def test_an_exception_of_the_block_propagates_unchanged():
    """The network's own machinery must not wrap or replace it, nor swallow a cancellation."""

    async def fail() -> None:
        async with nodes("a", "b") as (a, b):
            await a.dial(b.addresses[0])
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    with trio.move_on_after(0.2) as patience:
        async with nodes("a", "b") as (a, b):
            await a.dial(b.addresses[0])
            await trio.sleep_forever()
    assert patience.cancelled_caught


LISTENER = """
import logging, sys, time, trio
from starling.node.config.schema import LimitsSection
from starling.node.net.libp2p import open_network
from tests.harness.libp2p_nodes import Remembered
async def main():
    async with open_network(b"s" * 32, ["/ip4/127.0.0.1/tcp/0"], [], LimitsSection(), Remembered()) as network:
        print(network.addresses[0], flush=True)
        with trio.move_on_after(0.1):
            try:
                await network.dial("/ip4/127.0.0.1/tcp/1/p2p/" + network.peer_id[:-1] + "9")
            except Exception:
                pass
        await trio.sleep_forever()
try:
    trio.run(main)
except KeyboardInterrupt:
    assert not logging.getLogger().handlers, "the root logger was touched"
    sys.exit(7)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_process_at_once_without_output():
    """No delay, no traceback, nothing on stderr, and the root logger is the application's."""
    process = subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline().startswith("/ip4/127.0.0.1/tcp/")
        time.sleep(0.3)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
        assert time.monotonic() - start < 3.0
    assert (process.returncode, errors) == (7, "")


@pytest.mark.slow
@on_sockets
async def test_a_killed_process_is_noticed_at_once():
    """SIGKILL leaves no farewell, but the kernel closes the socket."""
    async with node("a") as a:
        process = await trio.lowlevel.open_process([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE)
        line = (await process.stdout.receive_some(1000)).decode().strip()
        peer = await a.dial(line)
        await a.send(peer, "control", b"x")
        process.kill()
        await process.wait()
        assert [await next_event(a) for _ in range(2)] == [Connected(peer), Disconnected(peer)]
        await process.stdout.aclose()


STOCK = """
import sys, trio
from libp2p import new_host
from libp2p.network.config import ConnectionConfig
from libp2p.peer.peerinfo import info_from_p2p_addr
from multiaddr import Multiaddr
async def main():
    listen = [Multiaddr("/ip4/127.0.0.1/tcp/0")]
    host = new_host(listen_addrs=listen, connection_config=ConnectionConfig(min_connections=0, low_watermark=0))
    async with host.run(listen):
        async def echo(stream):
            header = await stream.read(4)
            body = b""
            while len(body) < int.from_bytes(header, "big"):
                body += await stream.read(1 << 16)
            back = await host.new_stream(stream.muxed_conn.peer_id, ["/starling/state/2"])
            await back.write(header + body)
        host.set_stream_handler("/starling/state/2", echo)
        address = next(str(each) for each in host.get_addrs())
        print(address if "/p2p/" in address else f"{address}/p2p/{host.get_id()}", flush=True)
        await host.connect(info_from_p2p_addr(Multiaddr(sys.argv[1])))
        stream = await host.new_stream(info_from_p2p_addr(Multiaddr(sys.argv[1])).peer_id, ["/starling/control/1"])
        await stream.write((5).to_bytes(4, "big") + b"stock")
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.mark.slow
@on_sockets
async def test_a_stock_py_libp2p_host_connects_and_exchanges_frames():
    """The wire format is libp2p's: Noise, Yamux and multistream-select of the unmodified library."""
    async with node("a", report=(report := Remembered())) as a:
        process = await trio.lowlevel.open_process([sys.executable, "-c", STOCK, a.addresses[0]], stdout=subprocess.PIPE)
        try:
            stock = (await process.stdout.receive_some(1000)).decode().strip()
            assert (await next_frame(a, "control")).frame == b"stock"
            peer = await a.dial(stock)
            payload = bytes(range(256)) * 7000
            await a.send(peer, "state", payload)
            assert (await next_frame(a, "state")).frame == payload
            assert report.faults == []
        finally:
            process.kill()
            await process.wait()
            await process.stdout.aclose()


STARTUP = """
import sys, trio
from starling.node.config.schema import LimitsSection
from starling.node.net.libp2p import open_network
from tests.harness.libp2p_nodes import Remembered
async def main():
    async with open_network(b"s" * 32, ["/ip4/127.0.0.1/tcp/0"], [], LimitsSection(), Remembered()):
        import psutil
        print(psutil.Process().memory_info().rss >> 20, *(name for name in ("httpx", "torch") if name in sys.modules))
trio.run(main)
"""


@pytest.mark.slow
def test_a_listening_network_is_small():
    """The whole daemon has 130 MiB, most of which its network must leave free."""
    done = subprocess.run([sys.executable, "-c", STARTUP], capture_output=True, text=True, check=True, timeout=30)
    mebibytes, *superfluous = done.stdout.split()
    assert int(mebibytes) < 90
    assert superfluous == []


def test_loopback_is_announced_only_when_nothing_else_is_bound():
    """A node that listens on 127.0.0.1 announces it; one that listens on all interfaces announces the others."""
    hosts = ["192.0.2.7", "2001:db8::7"]
    published = addresses.reachable([("127.0.0.1", 4001)], "P", hosts)
    assert [str(each) for each in published] == ["/ip4/127.0.0.1/tcp/4001/p2p/P"]
    everywhere = [("0.0.0.0", 1), ("::", 1)]
    assert [each.host for each in addresses.reachable(everywhere, "P", hosts)] == hosts
    assert [each.host for each in addresses.reachable(everywhere, "P", hosts[1:])] == hosts[1:], "no 127.0.0.1 beside it"
    assert [each.host for each in addresses.reachable(everywhere, "P", [])] == ["127.0.0.1", "::1"]
    assert LOOPBACK.startswith("/ip4/127.0.0.1")


@on_sockets
async def test_frames_to_a_stranger_that_cannot_be_reached_do_not_dial_each_time():
    """Each is lost, as before; a dial for each took a tenth of a core while identities came and went. Its owner may dial at once."""
    async with node("a") as a:
        async with node("b") as b:
            await b.dial(a.addresses[0])
            address = b.addresses[0]
        await until(lambda: a.way(peer_of("b")) is None)
        doors = await trio.open_tcp_listeners(addresses.parse(address).port, host="127.0.0.1")
        knocks, members = [], []

        async def hang_up_at_once(raw):
            knocks.append(trio.current_time())
            await trio.aclose_forcefully(raw)

        async def fails(send, *what):
            before = len(knocks)
            with pytest.raises(PeerUnreachable):
                await send(*what)
            return len(knocks) - before

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, hang_up_at_once, doors)
            a.learn(peer_of("b"), [address])
            assert sum([await fails(a.send, peer_of("b"), "control", b"x") for _ in range(3)]) == 3, "nobody is a stranger yet"
            a.ration(lambda: tuple(members))
            assert sum([await fails(a.send, peer_of("b"), "control", b"x") for _ in range(20)]) == 0
            assert await fails(a.dial, address) == 1
            members.append(peer_of("b"))
            assert await fails(a.send, peer_of("b"), "control", b"x") == 1
            nursery.cancel_scope.cancel()
