"""How outer parameters of other members are fetched: of all who report them, without waiting long for who is silent."""

import pytest
import trio
from trio.testing import MockClock

from starling.gossip.errors import EngineError
from starling.gossip.wire.schema import StateOffer
from starling.node.daemon.state.downloads import Offered
from starling.node.daemon.state.outer_sync import OuterSync
from starling.node.daemon.state.transfer import OFFER_GRACE_S
from starling.node.rpc import calls
from tests.harness.daemons import Reports

A, B, C = (bytes([number]) * 8 for number in range(1, 4))
NEVER = 1000.0
OFFERED_S = 0.5  # what an offer took


class Peers:
    """A transfer whose peers offer these bytes, None: nothing, and give them after these seconds."""

    def __init__(self, given, seconds):
        self.given, self.seconds, self.downloads, self.sources, self.asked = given, seconds, self, [], {}

    async def offers(self, peers, outer):
        await trio.lowlevel.checkpoint()
        assert list(peers) == sorted(outer)
        self.asked = outer
        given = {peer: self.given.get(peer) or b"" for peer in peers}
        return [Offered(peer, StateOffer(1, 1, 0, len(it), it, b""), OFFERED_S) for peer, it in given.items()]

    async def download(self, chosen, holders, times):
        self.sources.append([it.peer for it in (chosen, *holders)])
        await trio.sleep(self.seconds.get(chosen.peer, 0.1))
        return chosen.offer.digest


class Engine:
    """Takes bytes that are the digest, and replaces if anything was taken; `lost` from the first call on."""

    def __init__(self, lost=False):
        self.taken, self.replaced, self.lost = [], 0, lost

    async def call(self, request):
        await trio.lowlevel.checkpoint()
        if self.lost:
            raise EngineError("lost")
        if isinstance(request, calls.ReplaceOuter):
            self.replaced += 1
            return calls.Done()
        if request.state != request.digest:
            return calls.Refused("peer", "state_of_another_model")
        self.taken.append(request.digest)
        return calls.Done()


def repaired(outer, voices, given, seconds=None, engine=None):
    """Return the engine, the reports, the sources of each download, and the virtual seconds."""
    peers, engine, report = Peers(given, seconds or {}), engine or Engine(), Reports()

    async def story():
        await OuterSync(peers, engine, report).repair(calls.Divergence(tuple(outer.items()), voices))
        return engine, report, peers.sources, trio.current_time()

    return trio.run(story, clock=MockClock(autojump_threshold=0))


def test_what_several_report_comes_from_all_of_them_at_once():
    engine, report, sources, _ = repaired({A: ("a", "b", "c")}, 3, dict.fromkeys("abc", A))
    assert (engine.taken, engine.replaced, sources) == ([A], 1, [["a", "b", "c"]])
    assert report.events[0][3] == {"members": 3, "received": 3, "replaced": True}


def test_bytes_with_another_digest_are_the_fault_of_all_who_offered_them_and_the_next_are_taken():
    engine, report, sources, _ = repaired({A: ("a", "b", "c")}, 3, {"a": B, "b": B, "c": A})
    assert (engine.taken, engine.replaced, sources) == ([A], 1, [["a", "b"], ["c"]])
    assert report.faults == [("a", "state_refused"), ("b", "state_refused")]


def test_a_member_that_gives_nothing_costs_as_long_as_the_others_took_and_a_second():
    engine, _, _, took_s = repaired({A: ("a",), B: ("b",), C: ("c",)}, 2, {"a": A, "b": B, "c": C}, {"a": 0.2, "b": 0.5, "c": NEVER})
    assert (engine.taken, engine.replaced) == ([A, B], 1)
    assert took_s == pytest.approx(2 * 0.5 + OFFER_GRACE_S)


def test_a_member_with_other_bytes_that_gives_nothing_delays_the_others_by_a_second():
    engine, _, sources, took_s = repaired({A: ("a", "b")}, 2, {"a": B, "b": A}, {"a": NEVER, "b": 0.2})
    assert (engine.taken, engine.replaced, sources) == ([A], 1, [["a"], ["b"]])
    assert took_s == pytest.approx(OFFER_GRACE_S + 0.2)


def test_a_member_that_alone_offers_and_gives_nothing_is_waited_for_by_its_offer():
    _, report, _, took_s = repaired({A: ("a", "b")}, 2, {"a": A}, {"a": NEVER})
    assert took_s == pytest.approx(2 * OFFERED_S + OFFER_GRACE_S, abs=0.01)
    assert report.events[0][3] == {"members": 2, "received": 0, "replaced": False}


def test_what_comes_within_that_time_counts_too():
    engine, _, _, took_s = repaired({A: ("a",), B: ("b",), C: ("c",)}, 2, {"a": A, "b": B, "c": C}, {"a": 0.2, "b": 0.5, "c": 1.9})
    assert (engine.taken, took_s) == ([A, B, C], pytest.approx(1.9))


def test_of_too_few_members_nothing_is_replaced():
    engine, report, _, _ = repaired({A: ("a",), B: ("b",)}, 2, {"a": A, "b": None})
    assert (engine.taken, engine.replaced) == ([A], 0)
    assert report.events[0][3] == {"members": 2, "received": 1, "replaced": False}


def test_a_lost_engine_ends_the_round():
    with pytest.raises(EngineError):
        repaired({A: ("a",), B: ("b",)}, 2, {"a": A, "b": B}, engine=Engine(lost=True))
