"""NAT-PMP: datagrams follow RFC 6886, and a router that answers anything else counts as absent."""

import struct
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from starling.node.net import nat_pmp
from starling.node.net.nat_pmp import ADDRESS, TCP, NatPmp, answer, of_route, of_routes, question
from starling.node.net.port_lease import LEASE_S, Lease


def address(host=(9, 9, 9, 9), result=0):
    return struct.pack(">BBHI", 0, 128, result, 77) + bytes(host)


def led(port=4001, outside=4001, seconds=3600, result=0):
    return struct.pack(">BBHIHHI", 0, 130, result, 77, port, outside, seconds)


@asynccontextmanager
async def router(*answers):
    """Run a router on this machine that gives the listed answers in turn, None for no answer, and records the requests."""
    asked, left = [], list(answers)
    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as listening:
        await listening.bind(("127.0.0.1", 0))

        async def serve():
            while True:
                data, who = await listening.recvfrom(64)
                asked.append(data)
                if left and (reply := left.pop(0)) is not None:
                    await listening.sendto(reply, who)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            yield NatPmp(lambda: "127.0.0.1", listening.getsockname()[1]), asked
            nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(nat_pmp, "WAITS_S", (0.05, 0.05))


@pytest.mark.trio
async def test_port_mapping_requests_have_the_standards_bytes():
    async with router(address(), led(outside=4777, seconds=600), led(outside=0, seconds=0)) as (it, asked):
        assert await it.lead(4001, 4001) == Lease("9.9.9.9", 4777, 600.0)
        await it.give_back(4777, 4001)
    assert asked == [
        b"\0\0",
        b"\0\x02\0\0" + (4001).to_bytes(2, "big") * 2 + int(LEASE_S).to_bytes(4, "big"),
        b"\0\x02\0\0" + (4001).to_bytes(2, "big") + bytes(6),
    ]


@pytest.mark.trio
async def test_a_lost_request_is_repeated_and_other_answers_are_skipped():
    async with router(None, address(), led(result=0)[:5], led()) as (it, asked):
        assert await it.lead(4001, 4001) == Lease("9.9.9.9", 4001)
    assert len(asked) == 4


@pytest.mark.trio
@pytest.mark.parametrize(
    "answers",
    [
        (),
        (address(result=3),),
        (address()[:-1],),
        (address(), led(result=2)),
        (address(), led(port=4002)),
        (address(), led(outside=0)),
        (address(), led(seconds=0)),
        (address(), led()[:-1]),
    ],
)
async def test_a_refusing_silent_or_invalid_router_gives_no_port(answers):
    async with router(*answers) as (it, _):
        assert await it.lead(4001, 4001) is None


@pytest.mark.trio
async def test_without_a_router_no_time_is_lost():
    with trio.fail_after(1.0):
        assert await NatPmp(lambda: "127.0.0.1", 1).lead(4001, 4001) is None
        assert await NatPmp(lambda: None).lead(4001, 4001) is None
        await NatPmp(lambda: None).give_back(4001, 4001)


@given(st.binary(max_size=20), st.sampled_from([ADDRESS, TCP]))
def test_any_datagram_parses_as_an_answer_a_refusal_or_none(data, operation):
    found = answer(data, operation)
    assert found is None or len(found) in {0, 4 if operation == ADDRESS else 8}
    if found is None and len(data) >= 8:
        assert data[0] != 0 or data[1] != operation + 128


def test_requests_have_the_standard_s_lengths():
    assert [len(question(ADDRESS)), len(question(TCP, 1, 2, 3))] == [2, 12]


def test_the_router_is_that_of_the_default_route():
    head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
    own = "eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n"
    assert of_routes(head + own) is None
    assert of_routes(head + own + "eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\n") == "192.168.1.1"
    assert of_routes("") is None
    assert of_route("   route to: default\n    gateway: 192.168.1.1\n  interface: en0\n") == "192.168.1.1"
    assert of_route("") is None
