"""The metrics endpoint answers scrapers, survives hostile ones, and never stops the node."""

import socket
from contextlib import asynccontextmanager, suppress

import h11
import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import memory_stream_pair

from starling.node.daemon.observe import metrics
from starling.node.daemon.observe.metrics import MetricsService, parse_address
from starling.node.status.snapshot import Transaction
from tests.harness.daemons import Reports, until
from tests.harness.snapshots import snapshot

pytestmark = pytest.mark.trio


class Node:
    """Has metrics to show, and counts how often they are read."""

    def __init__(self, **changes):
        self.asked = 0
        self.changes = changes

    def __call__(self):
        self.asked += 1
        return snapshot(**self.changes)


def service(listen="127.0.0.1:0", node=None):
    told = Reports()
    return MetricsService(listen, node or Node(), told), told


@asynccontextmanager
async def line(served):
    """Open a connection to the service in virtual time, without a socket."""
    here, there = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.answer, there)
        yield here
        await here.aclose()


async def answer(stream):
    """Return (status, headers, body) of the only answer."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("Host", "a"), ("Connection", "close")]))
    parser.send(h11.EndOfMessage())
    head, body = None, b""
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            parser.receive_data(await stream.receive_some())
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        else:
            return head.status_code, dict(head.headers), body


async def ask(served, target="/metrics", method="GET", more=b""):
    async with line(served) as stream:
        await stream.send_all(f"{method} {target} HTTP/1.1\r\nHost: node\r\n".encode() + more + b"\r\n")
        return await answer(stream)


async def test_a_scrape_parses_in_both_formats(autojump_clock):
    served, _ = service()
    status, headers, body = await ask(served)
    assert status == 200
    assert headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
    assert any(family.name == "starling_round" for family in text_string_to_metric_families(body.decode()))
    _, headers, body = await ask(served, more=b"Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n")
    assert headers[b"content-type"].startswith(b"application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


async def test_health_is_503_with_the_problem(autojump_clock):
    assert (await ask(service()[0], "/healthz"))[::2] == (200, b"training\n")
    served, _ = service(node=Node(problem="no bootstrap peer answers; ask a member for a fresh invite"))
    status, _, body = await ask(served, "/healthz?verbose")
    assert status == 503
    assert body == b"training: no bootstrap peer answers; ask a member for a fresh invite\n"


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [("GET", "/", 404), ("GET", "/../etc/passwd", 404), ("DELETE", "/metrics", 405), ("POST", "/healthz", 405), ("GET", "*", 404)],
)
async def test_other_requests_are_refused_in_one_line(autojump_clock, method, target, status):
    told = await ask(service()[0], target, method)
    assert told[0] == status
    assert told[2].count(b"\n") == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 50_000,
        b"GET /" + b"x" * 50_000,
        b"\r\n" * 100,
    ],
)
async def test_an_invalid_request_costs_one_line_and_no_snapshot(autojump_clock, sent):
    node = Node()
    served, _ = service(node=node)
    async with line(served) as stream:
        await stream.send_all(sent)
        await stream.send_eof()
        status, _, _ = await answer(stream)
    assert 400 <= status < 500
    assert node.asked == 0


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: 1\r\n", "a byte now and then", "no reading"])
async def test_an_unfinished_http_request_is_dropped(autojump_clock, sent):
    served, _ = service()
    began = trio.current_time()
    if sent == "no reading":
        here, there = memory_stream_pair()
        there.send_stream.send_all = never
        await here.send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        await served.answer(there)
    else:
        async with line(served) as stream, trio.open_nursery() as nursery:
            if isinstance(sent, str):
                nursery.start_soon(trickle, stream)
            elif sent:
                await stream.send_all(sent)
            assert await stream.receive_some() == b""
    assert trio.current_time() - began == pytest.approx(metrics.DEADLINE_S, abs=0.5)
    assert served.connections == 0


async def never(_data):
    await trio.sleep_forever()


async def trickle(stream):
    with suppress(trio.BrokenResourceError):
        while True:
            await stream.send_all(b"G")
            await trio.sleep(0.5)


async def test_idle_connections_cannot_block_a_scraper(autojump_clock, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_CONNECTIONS", 4)
    served, _ = service()
    async with trio.open_nursery() as nursery:
        idle = []
        for _ in range(4):
            here, there = memory_stream_pair()
            nursery.start_soon(served.answer, there)
            await trio.testing.wait_all_tasks_blocked()
            idle.append(here)
        assert (await ask(served))[0] == 200
        assert await idle[0].receive_some() == b""  # the oldest connection was closed
        assert served.connections == 3
        nursery.cancel_scope.cancel()


async def test_a_flood_from_one_address_does_not_block_a_scraper_at_another(autojump_clock, monkeypatch):
    """Both its connections and its requests per second are limited."""
    served, _ = service()
    hosts = iter(["10.0.0.1"] * 200 + ["10.0.0.2"])
    monkeypatch.setattr(metrics, "_client", lambda _stream: next(hosts))
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            _, there = memory_stream_pair()
            nursery.start_soon(served.answer, there)
        await trio.testing.wait_all_tasks_blocked()
        assert (await ask(served))[0] == 200
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_flood_is_closed_unread_and_costs_four_snapshots_a_second(autojump_clock):
    node = Node()
    served, _ = service(node=node)
    answered = 0
    for _ in range(300):
        here, there = memory_stream_pair()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                await here.send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
                nursery.start_soon(served.answer, there)
                answered += bool(await here.receive_some())
                scope.cancel()
        await trio.sleep(0.005)
    assert metrics.BURST <= answered <= metrics.BURST + metrics.RATE * 1.5 + 1
    assert node.asked <= 1.5 / metrics.FRESH_S + 1


async def test_a_new_scrape_sees_new_figures(autojump_clock):
    node = Node(round=1)
    served, _ = service(node=node)
    assert b"starling_round 1.0\n" in (await ask(served))[2]
    node.changes["round"] = 2
    await trio.sleep(metrics.FRESH_S)
    assert b"starling_round 2.0\n" in (await ask(served))[2]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (":9464", (None, 9464)),
        ("[::1]:9464", ("::1", 9464)),
        ("localhost:0", ("localhost", 0)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
async def test_the_metrics_address_is_host_and_port(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["9464", "localhost", "::1:9464", "a:b", "a:65536", "a:-1", "http://a:1", "a:1/x", "a b:1", "a:٣"])
async def test_an_invalid_address_is_reported_once_and_the_node_goes_on(text):
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)
    served, told = service(text)
    await served.serve()  # returns
    ((name, words, _, _),) = told.events
    assert name == "no_metrics"
    assert words.startswith("metrics.listen: must be")
    assert repr(text) in words
    assert "starling run" in words


@pytest.mark.real
async def test_a_port_in_use_is_reported_once_and_taken_when_free(monkeypatch):
    monkeypatch.setattr(metrics, "RETRY_S", 0.0)
    tries, again = [], trio.Event()
    listen = trio.open_tcp_listeners

    async def counted(port, *, host):
        tries.append(port)
        if len(tries) == 3:
            again.set()
        return await listen(port, host=host)

    monkeypatch.setattr(trio, "open_tcp_listeners", counted)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        served, told = service(f"127.0.0.1:{port}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.serve)
            with trio.fail_after(20):
                await again.wait()
            ((name, words, _, _),) = told.events
            assert name == "no_metrics"
            assert "in use" in words
            assert f"'127.0.0.1:{port}'" in words
            other.close()
            await until(lambda: len(told.events) > 1, 20)
            assert told.events[1][:2] == ("metrics_listening", f"metrics at http://127.0.0.1:{port}/metrics")
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
                assert (await answer(stream))[::2] == (200, b"training\n")
            nursery.cancel_scope.cancel()


@pytest.mark.real
@pytest.mark.parametrize("listen", ["192.0.2.1:9464", f"{'x' * 70}.example:1"])
async def test_an_address_of_another_machine_is_reported_and_the_node_continues(listen):
    served, told = service(listen)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.serve)
        await until(lambda: told.events, 20)
        nursery.cancel_scope.cancel()
    assert told.events[0][0] == "no_metrics"


async def test_the_last_exchange_of_each_outcome_is_an_exemplar_where_the_format_has_them():
    """An exemplar that is too long or has no duration is left out, and the scrape is still valid."""
    ended = [
        Transaction(time_s=5.0, peer="12D3KooWa", round=7, number=3, asked=True, outcome="committed", seconds=0.5),
        Transaction(time_s=6.0, peer="12D3KooWb", round=8, number=4, asked=True, outcome="committed", seconds=0.25),
        Transaction(time_s=6.0, peer="12D3KooWb", round=8, number=0, asked=True, outcome="busy"),
        Transaction(time_s=6.0, peer="x" * 120, round=8, number=5, asked=True, outcome="timeout", seconds=9.0),
    ]
    one = snapshot(transactions=tuple(ended))
    families = parse_open(metrics.exposition(one, "application/openmetrics-text")[0].decode())
    found = {s.labels["outcome"]: s.exemplar for f in families if f.name == "starling_exchanges" for s in f.samples}
    last = found.pop("committed")
    assert (last.labels, last.value, float(last.timestamp)) == ({"peer": "12D3KooWb", "round": "8", "number": "4"}, 0.25, 6)
    assert found == dict.fromkeys(("aborted", "busy", "timeout"))
    plain = {family.name: family for family in text_string_to_metric_families(metrics.exposition(one)[0].decode())}
    assert [sample.exemplar for sample in plain["starling_exchanges"].samples] == [None] * 4
