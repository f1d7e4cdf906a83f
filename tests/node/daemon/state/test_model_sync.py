"""Whom a late joiner asks, and whom it believes: with peers and an engine that say what they are told to say."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from starling.gossip.errors import EngineError
from starling.gossip.wire.schema import StateOffer
from starling.node.daemon.state.model_sync import ASKED, COMPARED, GRACE_S, ModelSync, disjoint
from starling.node.daemon.state.transfer import Offered
from starling.node.rpc import calls


class Peers:
    """A transfer whose peers offer (round, digest) and give their model after so many seconds; None: nobody answers."""

    def __init__(self, offers, seconds=None):
        self.offered, self.seconds = offers, seconds or {}
        self.asked, self.downloaded = [], []

    async def offers(self, peers):
        self.asked.append(tuple(peers))
        await trio.sleep(0.1)
        found = {peer: self.offered[peer] for peer in sorted(peers) if self.offered[peer] is not None}
        return [Offered(p, StateOffer(1, 1, at, size, digest, b"")) for p, (at, digest, size) in found.items()]

    async def download(self, chosen, holders=()):
        await trio.sleep(self.seconds.get(chosen.peer, 0.0))
        self.downloaded.append(chosen.peer)
        return None if self.seconds.get(chosen.peer) == 7.0 else chosen.peer.encode()


class Engine:
    """Believes everybody who is not in `liars`, if two are left, or one of one."""

    def __init__(self, liars=(), refused=None):
        self.liars, self.refused, self.held, self.turn = set(liars), refused or {}, {}, 0

    async def call(self, request):
        await trio.lowlevel.checkpoint()
        if isinstance(request, calls.Consider):
            assert request.state == request.peer.encode()
            if request.peer in self.refused:
                return calls.Refused("peer", self.refused[request.peer])
            if request.turn != self.turn:
                self.held, self.turn = {}, request.turn
            self.held[request.peer] = request.round
            assert len(self.held) <= ASKED
            return calls.Done()
        held, self.held = self.held, {}
        good = sorted(held.keys() - self.liars)
        if len(held) > 1 and 2 * len(good) <= len(held):
            return calls.Agreed(0, (), ())
        return calls.Agreed(min(held[peer] for peer in good), tuple(good), tuple(sorted(held.keys() & self.liars)))


class Events:
    def __init__(self):
        self.faults, self.events = [], []

    def event(self, name, text, *, level="info", **_fields):
        self.events.append((name, level))

    def fault(self, peer, reason):
        self.faults.append((peer, reason))


def at(round: int, digest: str = "", size: int = 9):
    return (round, (digest or f"own {round}").encode().ljust(32), size)


def fetched(peers: Peers, engine: Engine, newer_than: int = 0, order="abcdefg"):
    """-> the round taken over, what was reported, virtual seconds, and whether models contradicted each other."""
    report = Events()

    async def story():
        joining = ModelSync(transfer=peers, engine=engine, report=report)
        taken = await joining.fetch([peer for peer in order if peer in peers.offered], newer_than)
        return taken, report, trio.current_time(), joining.contradicted

    return trio.run(story, clock=MockClock(autojump_threshold=0))


def test_three_are_asked_and_no_more_where_they_agree():
    peers = Peers({peer: at(5 + i) for i, peer in enumerate("abcdef")})
    taken, report, _, _ = fetched(peers, Engine())
    assert taken == 5
    assert peers.asked == [("a", "b", "c")]
    assert report.events == [("state_fetched", "info")]
    assert report.faults == []


def test_models_that_are_equal_to_the_bit_are_downloaded_once():
    """Two of three that are the same in digest and round; the third need not be looked at."""
    peers = Peers({"a": at(9), "b": at(5, "same"), "c": at(5, "same")})
    assert fetched(peers, Engine())[0] == 5
    assert peers.downloaded == ["b"]


def test_a_digest_copied_from_another_does_not_carry_a_round_of_ones_own():
    """Else a liar would make an honest model one of the last round."""
    peers = Peers({"a": at(2**62, "same"), "b": at(5, "same"), "c": at(6)})
    taken, _, _, _ = fetched(peers, Engine())
    assert taken == 5
    assert sorted(peers.downloaded) == ["a", "b", "c"]


def test_where_the_common_model_is_none_the_others_are_looked_at():
    """Two liars with one digest must not keep an honest third from being heard."""
    engine = Engine(refused={"a": "state_unusable", "b": "state_unusable"})
    taken, report, _, _ = fetched(Peers({"a": at(5, "same"), "b": at(5, "same"), "c": at(6)}), engine)
    assert taken == 6
    assert ("a", "state_poisoned") in report.faults


def test_one_poisoned_model_is_blamed_and_the_round_is_that_of_the_others():
    taken, report, _, _ = fetched(Peers({"a": at(2**62), "b": at(5), "c": at(6)}), Engine(liars="a"))
    assert taken == 5
    assert report.faults == [("a", "state_poisoned")]


def test_where_those_asked_contradict_each_other_the_next_are_asked():
    """And models of the first three have no say any more."""
    peers = Peers({peer: at(5 + i) for i, peer in enumerate("abcdef")})
    taken, report, _, contradicted = fetched(peers, Engine(liars="ab"))
    assert taken == 8
    assert peers.asked == [("a", "b", "c"), ("d", "e", "f")]
    assert ("state_contradicted", "warning") in report.events
    assert contradicted


def test_where_all_contradict_each_other_nothing_is_taken():
    taken, report, _, contradicted = fetched(Peers({"a": at(5), "b": at(6)}), Engine(liars="a"))
    assert taken is None
    assert contradicted
    assert report.faults == []


def test_numbers_that_are_none_are_a_poisoned_model_and_damage_is_a_fault():
    """The latter may be a bad program; no honest node trains with the former."""
    engine = Engine(refused={"a": "state_unusable", "b": "state_damaged"})
    taken, report, _, _ = fetched(Peers({peer: at(5 + i) for i, peer in enumerate("abcd")}), engine)
    assert taken == 7
    assert min(report.faults) == ("a", "state_poisoned")
    assert ("b", "state_refused") in report.faults


def test_who_does_not_answer_or_has_nothing_is_replaced_by_the_next():
    peers = Peers({"a": None, "b": at(0, size=0), "c": at(5), "d": at(6), "e": at(7), "f": at(8)})
    assert fetched(peers, Engine())[0] == 5
    assert peers.asked == [("a", "b", "c"), ("d", "e")]


def test_a_single_model_is_taken_with_a_warning():
    """Two nodes make a swarm too; but it is said that nothing could be compared."""
    taken, report, _, _ = fetched(Peers({"a": at(5), "b": at(0, size=0)}), Engine())
    assert taken == 5
    assert report.events == [("state_fetched", "warning")]


def test_one_who_says_that_all_are_far_ahead_is_not_followed_where_more_say_they_are_not():
    """A liar at a swarm's start; with nobody else to ask, it is all there is to know."""
    peers = Peers({"a": at(500), "b": at(0), "c": at(0)})
    assert fetched(peers, Engine())[0] is None
    assert peers.downloaded == []
    peers = Peers({"a": None, "b": at(500), "c": None, "d": at(0), "e": at(0)})
    assert fetched(peers, Engine())[0] is None
    assert fetched(Peers({"a": at(500), "b": at(0)}), Engine())[0] == 500


def test_who_gives_slowly_does_not_hold_up_a_joiner_that_has_two_models():
    """It has as long again as the others took, and a little."""
    peers = Peers({"a": at(5), "b": at(6), "c": at(7)}, {"a": 20.0, "b": 30.0, "c": 5000.0})
    taken, _, took_s, _ = fetched(peers, Engine())
    assert taken == 5
    assert took_s == pytest.approx(60.0 + GRACE_S, abs=1.0)


def test_a_download_that_fails_leaves_the_others():
    peers = Peers({"a": at(5), "b": at(6), "c": at(7), "d": at(8)}, {"a": 7.0})
    taken, report, _, _ = fetched(peers, Engine())
    assert taken == 6
    assert peers.asked[1] == ("d",)
    assert report.faults == []


peer_lists = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=20)


@given(places=peer_lists)
@settings(max_examples=60)
def test_the_order_is_of_the_same_peers_and_its_first_three_share_as_little_as_a_choice_one_by_one_can(places):
    """Three of one network, one operator or one inviter are one voice."""
    traits = {f"p{i}": {f"net {net}", f"who {who}"} for i, (net, who) in enumerate(places)}
    peers = list(traits)
    order = disjoint(peers, traits.__getitem__)
    assert sorted(order) == sorted(peers)
    shared = Counter[str]()
    for place, peer in enumerate(order[:ASKED]):
        least = min(sum(shared[t] for t in traits[other]) for other in order[place:])
        assert sum(shared[t] for t in traits[peer]) == least
        shared.update(traits[peer])


def test_three_networks_are_three_voices():
    nets = {"a": {"1"}, "b": {"1"}, "c": {"1"}, "d": {"2"}, "e": {"3"}}
    assert disjoint(list("abcde"), nets.__getitem__)[:ASKED] == ["a", "d", "e"]


def test_in_a_large_swarm_only_some_are_compared():
    looked: list[str] = []
    peers = [f"p{i}" for i in range(5000)]
    order = disjoint(peers, lambda peer: looked.append(peer) or ())
    assert order == peers
    assert len(looked) == COMPARED


def test_an_engine_that_is_lost_is_an_error_for_the_caller():
    """Who holds the models is gone, and with it the models."""

    class Lost:
        async def call(self, request):
            raise EngineError("died")

    with pytest.raises(EngineError):
        trio.run(
            partial(ModelSync(transfer=Peers({"a": at(5)}), engine=Lost(), report=Events()).fetch, ["a"], 0),
            clock=MockClock(autojump_threshold=0),
        )
