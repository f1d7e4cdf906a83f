"""The order and times at which an exchange service sends messages."""

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from starling.gossip.exchange.commands import SendMessage
from starling.gossip.wire.schema import Request, Response
from starling.node.daemon.exchange.facts import Sent
from starling.node.daemon.exchange.service import LONG_BYTES, ExchangeService
from tests.harness.virtual import virtual

LONG = bytes(LONG_BYTES)


class Line:
    """A network that takes the given seconds for a long frame to a peer, and records who sends when and which durations are reported."""

    def __init__(self, **seconds: float) -> None:
        self.seconds, self.began, self.measured = seconds, {}, {}

    async def send(self, peer, _lane, frame):
        self.began[peer] = trio.current_time()
        await trio.sleep(self.seconds[peer] if len(frame) > LONG_BYTES else 0.0)

    def observe(self, fact):
        if isinstance(fact, Sent):
            self.measured[fact.message.peer] = fact.seconds

    async def inbound(self, _lane):
        await trio.sleep_forever()
        yield


def request(payload=LONG):
    return Request(1, 1, 0, 0, b"view", 0.5, 1.0, payload)


async def sent(line, messages, usual_s):
    """Return when each peer's message began to be sent."""
    context = SimpleNamespace(network=line, engine=None, report=None)
    core = SimpleNamespace(unreachable=lambda _peer, _now: ())
    service = ExchangeService(context, core, (line.observe,), send_s=5.0, usual_s=lambda: usual_s)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.serve)
        start = trio.current_time()
        for peer, message in messages.items():
            service.carry_out([SendMessage(peer, message)])
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(60.0)
        nursery.cancel_scope.cancel()
    return {peer: began - start for peer, began in line.began.items()}


@virtual
async def test_long_requests_are_sent_one_after_another_and_other_frames_at_once():
    line = Line(a=1.0, b=1.0, c=1.0, d=1.0)
    messages = {"a": request(), "b": request(), "c": Response(1, 1, LONG), "d": request(b"short")}
    assert await sent(line, messages, usual_s=2.0) == {"a": 0.0, "b": 1.0, "c": 0.0, "d": 0.0}
    assert line.measured["b"] == pytest.approx(1.0), "a rate is that of the line, without the wait"


@virtual
async def test_no_node_waits_for_a_slow_peer_longer_than_a_usual_transfer():
    line = Line(slow=4.0, b=1.0, c=1.0)
    assert await sent(line, dict.fromkeys(("slow", "b", "c"), request()), usual_s=1.5) == {"slow": 0.0, "b": 1.5, "c": 1.5}


@virtual
async def test_a_failed_request_does_not_block_the_next():
    line = Line(dead=100.0, b=1.0)
    assert await sent(line, dict.fromkeys(("dead", "b"), request()), usual_s=50.0) == {"dead": 0.0, "b": 5.0}
