"""Whom a late joiner asks, and whom it believes: with peers and an engine that say what they are told to say."""

from collections import Counter
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from starling.gossip.errors import EngineError
from starling.gossip.wire.schema import StateOffer
from starling.node.daemon.state.downloads import Offered
from starling.node.daemon.state.model_sync import ASKED, COMPARED, GRACE_S, ModelSync, disjoint
from starling.node.rpc import calls
from tests.harness.daemons import Reports
from tests.strategies import examples


class Peers:
    """A transfer whose peers offer (round, digest) and give their model after so many seconds; None: nobody answers."""

    def __init__(self, offers, seconds=None):
        self.offered, self.seconds = offers, seconds or {}
        self.asked, self.downloaded, self.downloads = [], [], self

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


def at(round: int, digest: str = "", size: int = 9):
    return (round, (digest or f"own {round}").encode().ljust(32), size)


def fetched(peers: Peers, engine: Engine, newer_than: int = 0, order="abcdefg", live=False, abreast=()):
    """-> the round taken over, what was reported, virtual seconds, and whether models contradicted each other."""
    report = Reports()

    async def story():
        joining = ModelSync(transfer=peers, engine=engine, report=report)
        taken = await joining.fetch([peer for peer in order if peer in peers.offered], newer_than, live=live, abreast=abreast)
        return taken, report, trio.current_time(), joining.contradicted

    return trio.run(story, clock=MockClock(autojump_threshold=0))


SIX = {peer: at(5 + i) for i, peer in enumerate("abcdef")}
POISONED, OUTLIER, GONE, NONE = ("a", "state_poisoned"), ("a", "state_outlier"), None, at(0, size=0)
CASES = {
    "three are asked, no more where they agree": (SIX, {}, Engine(), 5, {"asked": [("a", "b", "c")], "downloaded": ["a", "b", "c"]}),
    "equal models are downloaded once": ({"a": at(9), "b": at(5, "same"), "c": at(5, "same")}, {}, Engine(), 5, {"downloaded": ["b"]}),
    "a copied digest with another round is another model": (
        {"a": at(2**62, "same"), "b": at(5, "same"), "c": at(6)},
        {},
        Engine(),
        5,
        {"downloaded": ["a", "b", "c"]},
    ),
    "two liars with one digest do not silence a third": (
        {"a": at(5, "same"), "b": at(5, "same"), "c": at(6)},
        {},
        Engine(refused={"a": "state_unusable", "b": "state_unusable"}),
        6,
        {"faults": {POISONED}},
    ),
    "an outlier is counted and does not set the round": (
        {"a": at(2**62), "b": at(5), "c": at(6)},
        {},
        Engine(liars="a"),
        5,
        {"faults": {OUTLIER}},
    ),
    "the next are asked where three contradict each other": (
        SIX,
        {},
        Engine(liars="ab"),
        8,
        {"asked": [("a", "b", "c"), ("d", "e", "f")], "events": {"state_contradicted", "state_fetched"}},
    ),
    "nothing is taken where all contradict each other": (
        {"a": at(5), "b": at(6)},
        {},
        Engine(liars="a"),
        None,
        {"contradicted": True, "faults": set()},
    ),
    "no honest node trains with values that are not finite; other damage may be a bug": (
        {peer: SIX[peer] for peer in "abcd"},
        {},
        Engine(refused={"a": "state_unusable", "b": "state_damaged"}),
        7,
        {"faults": {POISONED, ("b", "state_refused")}},
    ),
    "a peer without an answer or a model is replaced": (
        {"a": GONE, "b": NONE, "c": at(5), "d": at(6), "e": at(7), "f": at(8)},
        {},
        Engine(),
        5,
        {"asked": [("a", "b", "c"), ("d", "e")]},
    ),
    "one that claims to be far ahead is not followed against more": (
        {"a": at(500), "b": at(0), "c": at(0)},
        {},
        Engine(),
        None,
        {"downloaded": []},
    ),
    "nor against more that are asked later": ({"a": GONE, "b": at(500), "c": GONE, "d": at(0), "e": at(0)}, {}, Engine(), None, {}),
    "but it is where nobody else can be asked": ({"a": at(500), "b": at(0)}, {}, Engine(), 500, {}),
    "a slow download is given up once there are two models": (
        {peer: SIX[peer] for peer in "abc"},
        {"a": 20.0, "b": 30.0, "c": 5000.0},
        Engine(),
        5,
        {"took_s": 60.0 + GRACE_S},
    ),
    "a download that fails leaves the others": (
        {peer: SIX[peer] for peer in "abcd"},
        {"a": 7.0},
        Engine(),
        6,
        {"asked": [("a", "b", "c"), ("d",)], "faults": set()},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_models_on_which_members_agree_are_taken(case):
    offers, seconds, engine, agreed, expected = CASES[case]
    peers = Peers(offers, seconds)
    taken, report, took_s, contradicted = fetched(peers, engine)
    seen = {
        "asked": peers.asked,
        "downloaded": sorted(peers.downloaded),
        "faults": set(report.faults),
        "events": set(report.names),
        "contradicted": contradicted,
        "took_s": pytest.approx(took_s, abs=1.0),
    }
    assert taken == agreed
    assert expected.items() <= seen.items() if "took_s" not in expected else expected["took_s"] == seen["took_s"]


@pytest.mark.parametrize(("offers", "level"), [(SIX, "info"), ({"a": at(5), "b": NONE}, "warning")])
def test_a_single_model_is_taken_with_a_warning(offers, level):
    taken, report, _, _ = fetched(Peers(offers), Engine())
    assert taken == 5
    assert [event[::2][:2] for event in report.events] == [("state_fetched", level)]


@pytest.mark.parametrize(
    ("offers", "live", "taken"),
    [
        ({"a": at(30)}, True, None),
        ({"a": at(30)}, False, 30),
        ({"a": at(30), "b": at(31)}, True, 30),
        ({"a": at(30, "same"), "b": at(30, "same")}, True, 30),
        ({"a": at(30), "b": at(31), "c": at(9)}, True, None),
        ({"a": at(30, "same"), "b": at(30, "same"), "c": at(9)}, True, None),
        ({"a": at(30), "b": at(31), "c": at(9)}, False, 30),
        ({"a": at(30), "b": NONE, "c": NONE, "d": at(31)}, True, 30),
    ],
)
def test_a_live_node_gives_its_model_up_only_for_more_voices_than_contradict(offers, live, taken):
    """Ties go to the node that trains; a newcomer takes what there is."""
    assert fetched(Peers(offers), Engine(), 20, live=live)[0] == taken


def test_an_old_snapshot_of_a_peer_in_our_round_does_not_count():
    """A snapshot serves all who ask within a second, which may be many rounds: it is old, and its peer is not behind."""
    offers = {"a": at(30, "same"), "b": at(30, "same"), "c": at(9)}
    assert fetched(Peers(offers), Engine(), 20, live=True, abreast="abc")[0] == 30
    assert fetched(Peers(offers), Engine(), 20, live=True, abreast="ab")[0] is None
    assert fetched(Peers({"a": at(30), "b": at(9), "c": at(9)}), Engine(), 20, live=True, abreast="abc")[0] is None


peer_lists = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=20)


@given(places=peer_lists)
@examples(60)
def test_the_order_is_of_the_same_peers_and_its_first_three_share_as_little_as_a_choice_one_by_one_can(places):
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
    class Lost:
        async def call(self, request):
            raise EngineError("died")

    with pytest.raises(EngineError):
        trio.run(
            partial(ModelSync(transfer=Peers({"a": at(5)}), engine=Lost(), report=Reports()).fetch, ["a"], 0),
            clock=MockClock(autojump_threshold=0),
        )
