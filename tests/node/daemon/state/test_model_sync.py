"""Which peers a late joiner asks and which models it accepts, with simulated peers and engine."""

from collections import Counter
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from starling.gossip.chunk_times import LEAST_S, SLACK, SPREADS, UNKNOWN_S
from starling.gossip.errors import EngineError
from starling.gossip.wire.schema import StateOffer
from starling.node.daemon.membership.sources import COMPARED, disjoint
from starling.node.daemon.state.collecting import ASKED, MOST_BESIDE
from starling.node.daemon.state.downloads import Offered
from starling.node.daemon.state.fetching import POLL_S
from starling.node.daemon.state.model_sync import MAX_LET_DOWN, ModelSync
from starling.node.rpc import calls
from tests.harness.daemons import Reports
from tests.strategies import examples

FAILS_S, FAILS_LATE_S = 1.5, 30.5  # what a download takes that gives nothing


class Peers:
    """A transfer whose peers offer (round, digest) and deliver their model after the given seconds; None: nobody answers."""

    def __init__(self, offers, seconds=None, paces=None):
        self.offered, self.seconds, self.paces = offers, seconds or {}, paces or {}
        self.beside = self.most_beside = 0
        self.asked, self.downloaded, self.downloads = [], [], self

    async def offers(self, peers, newer_than):
        self.asked.append(tuple(peers))
        await trio.sleep(0.1)
        found = {peer: self.offered[peer] for peer in sorted(peers) if self.offered[peer] is not None}
        return [Offered(p, StateOffer(1, 1, at, size, digest, b""), 0.1) for p, (at, digest, size) in found.items()]

    def at_pace_s(self, peer, now):
        return self.paces.get(peer)

    async def download(self, chosen, holders, times):
        peer, took_s, began = chosen.peer, self.seconds.get(chosen.peer, 0.0), trio.current_time()
        self.beside += 1
        self.most_beside = max(self.beside, self.most_beside)
        times.asked(peer, began)
        try:
            if peer not in self.paces:
                await trio.sleep(took_s)
            while trio.current_time() < began + took_s:
                await trio.sleep(0.5)
                times.arrived(peer, 0.5, trio.current_time())
                times.asked(peer, trio.current_time())
            self.downloaded.append(peer)
            if took_s in {FAILS_S, FAILS_LATE_S}:
                times.given_up(peer, trio.current_time())
                return None
            times.arrived(peer, trio.current_time() - began, trio.current_time())
        finally:
            self.beside -= 1
        return peer.encode()


class Engine:
    """Accepts all models whose peers are not in `liars`, if at least two remain or only one was offered."""

    def __init__(self, liars=(), refused=None):
        self.liars, self.refused, self.held, self.turn, self.against_own = set(liars), refused or {}, {}, 0, []

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
        self.against_own.append(request.against_own)
        good = sorted(held.keys() - self.liars)
        if len(held) > 1 and 2 * len(good) <= len(held):
            return calls.Agreed(0, (), ())
        return calls.Agreed(min(held[peer] for peer in good), tuple(good), tuple(sorted(held.keys() & self.liars)))


def at(round: int, digest: str = "", size: int = 9):
    return (round, (digest or f"own {round}").encode().ljust(32), size)


def fetched(peers: Peers, engine: Engine, newer_than: int = 0, order="abcdefg", live=False):
    """Return the round taken over, the reports, the virtual seconds, and whether models contradicted each other."""
    report = Reports()

    async def story():
        joining = ModelSync(transfer=peers, engine=engine, report=report)
        taken = await joining.fetch([peer for peer in order if peer in peers.offered], newer_than, live=live)
        return taken, report, trio.current_time(), joining.contradicted

    return trio.run(story, clock=MockClock(autojump_threshold=0))


def case(offers, agreed, seconds=None, *, paces=None, liars=(), refused=None, asked=None, downloaded=None, **expected):
    """Offers and the seconds until they come by peer, the round taken over, and what is seen; peers are named by letters."""
    expected |= {} if asked is None else {"asked": [*map(tuple, asked)]}
    expected |= {} if downloaded is None else {"downloaded": [*downloaded]}
    return offers, seconds or {}, paces, Engine(liars, refused), agreed, expected


SEVEN = {peer: at(5 + i) for i, peer in enumerate("abcdefg")}
SIX, FOUR, THREE = ({peer: SEVEN[peer] for peer in peers} for peers in ("abcdef", "abcd", "abc"))
POISONED, OUTLIER, GONE, NONE = ("a", "state_poisoned"), ("a", "state_outlier"), None, at(0, size=0)
SLOW = {"a": 10.0, "b": 10.0, "c": 400.0}
CASES = {
    "three are asked, no more where they agree": case(SIX, 5, asked=["abc"], downloaded="abc"),
    "equal models are downloaded once": case({"a": at(9), "b": at(5, "same"), "c": at(5, "same")}, 5, downloaded="b"),
    "a copied digest with another round is another model": case(
        {"a": at(2**62, "same"), "b": at(5, "same"), "c": at(6)}, 5, downloaded="abc"
    ),
    "two liars with one digest do not silence a third": case(
        {"a": at(5, "same"), "b": at(5, "same"), "c": at(6)}, 6, refused=dict.fromkeys("ab", "state_unusable"), faults={POISONED}
    ),
    "an outlier is counted and does not set the round": case({"a": at(2**62), "b": at(5), "c": at(6)}, 5, liars="a", faults={OUTLIER}),
    "the next are asked where three contradict each other": case(
        SIX, 8, liars="ab", asked=["abc", "def"], events={"state_contradicted", "state_fetched"}
    ),
    "nothing is taken where all contradict each other": case({"a": at(5), "b": at(6)}, None, liars="a", contradicted=True, faults=set()),
    "no honest node trains with values that are not finite; other damage may be a bug": case(
        FOUR, 7, refused={"a": "state_unusable", "b": "state_damaged"}, faults={POISONED, ("b", "state_refused")}
    ),
    "a peer without an answer or a model is replaced": case(
        {"a": GONE, "b": NONE, "c": at(5), "d": at(6), "e": at(7), "f": at(8)}, 5, asked=["abc", "d", "e"]
    ),
    "one that claims to be far ahead is not followed against more": case({"a": at(500), "b": at(0), "c": at(0)}, None, downloaded=""),
    "nor against more that are asked later": case({"a": GONE, "b": at(500), "c": GONE, "d": at(0), "e": at(0)}, None),
    "nor against one": case({"a": at(500), "b": at(0)}, None),
    "but it is where nobody contradicts it": case({"a": at(500), "b": NONE}, 500),
    "a slow download is given up once there are two models": case(
        THREE, 5, {"a": 20.0, "b": 30.0, "c": 5000.0}, took_s=25.0 + SPREADS * SLACK * 25.0, faults={("c", "state_withheld")}
    ),
    "a silent one of three costs a few seconds": case(THREE, 5, {"b": 5000.0}, took_s=LEAST_S, faults={("b", "state_withheld")}),
    "the next is asked beside a silent one": case(
        SIX,
        5,
        {"a": 3.0, "b": 5000.0, "c": 3.0, "d": 6.0},
        asked=["abc", "d"],
        downloaded="acd",
        took_s=3.0 * (1.0 + SPREADS * SLACK) + 6.0,
    ),
    "a slow one counts if it comes before the one that was asked in its place": case(
        FOUR, 5, {"a": 3.0, "d": 1000.0}, asked=["abc", "d"], downloaded="abc", took_s=3.0, faults=set()
    ),
    "several silent ones are replaced": case(
        SEVEN,
        10,
        dict.fromkeys("abcde", FAILS_LATE_S),
        downloaded="fg",
        took_s=UNKNOWN_S + LEAST_S + 2.0 * POLL_S,
        faults={(peer, "state_withheld") for peer in "abcde"},
    ),
    "so many at a time": case(SEVEN, None, dict.fromkeys("abcdefg", FAILS_LATE_S), downloaded="abcdefg"),
    "one that sends a little now and then is not waited for": case(THREE, 5, SLOW, paces=SLOW, downloaded="ab", took_s=10.0, faults=set()),
    "a download that fails leaves the others": case(FOUR, 6, {"a": FAILS_S}, asked=["abc", "d"], faults=set()),
}


@pytest.mark.parametrize("case", CASES)
def test_models_on_which_members_agree_are_taken(case):
    offers, seconds, paces, engine, agreed, expected = CASES[case]
    peers = Peers(offers, seconds, paces)
    taken, report, took_s, contradicted = fetched(peers, engine)
    seen = {
        "asked": [*peers.asked[:1], *sorted(peers.asked[1:])],
        "downloaded": sorted(peers.downloaded),
        "faults": set(report.faults),
        "events": set(report.names),
        "contradicted": contradicted,
        "took_s": pytest.approx(took_s, abs=1.2),
    }
    assert taken == agreed
    assert {name: it for name, it in expected.items() if seen[name] != it} == {}
    assert peers.most_beside <= MOST_BESIDE


def test_who_let_this_node_down_is_requested_last_until_it_sends_something():
    peers, report = Peers(SIX, {"a": 5000.0}), Reports()

    async def story():
        joining = ModelSync(transfer=peers, engine=Engine(), report=report)
        for seconds in ({"a": 5000.0}, {}, {"b": 5000.0, "c": 5000.0, "d": 5000.0, "e": 5000.0}, {}):
            peers.seconds = seconds
            peers.asked.clear()
            await joining.fetch("abcdef", 0)
            yield list(peers.asked)

    async def collected():
        return [asked async for asked in story()]

    first, second, third, fourth = trio.run(collected, clock=MockClock(autojump_threshold=0))
    assert first == [("a", "b", "c"), ("d",)]
    assert second == [("b", "c", "d")]
    assert third[0] == ("b", "c", "d")
    assert set(third[1:]) == {("a",), ("e",), ("f",)}
    assert fourth == [("a", "e", "f")], "it has sent its model meanwhile; of one that was asked late nobody knows"
    assert set(report.faults) == {(peer, "state_withheld") for peer in "abcd"}


def test_a_bounded_number_of_members_is_remembered_as_silent():
    many = [f"p{number:03}" for number in range(MAX_LET_DOWN + 1)]
    peers = Peers({peer: at(5, peer) for peer in [*many, "q", "r"]}, dict.fromkeys(many, 5000.0))

    async def story():
        joining = ModelSync(transfer=peers, engine=Engine(), report=Reports())
        for peer in many:
            await joining.fetch([peer, "q", "r"], 0)
        await joining.fetch([many[1], many[0], "q", "r"], 0)

    trio.run(story, clock=MockClock(autojump_threshold=0))
    assert peers.asked[-2] == (many[0], "q", "r"), "the oldest is forgotten"


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
        ({"a": at(30), "b": at(31), "c": at(9)}, False, 30),
        ({"a": at(30), "b": NONE, "c": NONE, "d": at(31)}, True, 30),
        ({"a": at(30), "b": at(31), "c": at(32), "d": at(9)}, True, 30),
        ({"a": at(30), "b": at(9)}, False, None),
        ({"a": at(30), "b": at(9)}, True, None),
        ({"a": at(30), "b": at(31), "c": at(9), "d": at(8)}, True, None),
    ],
)
def test_a_training_node_replaces_its_model_only_if_more_peers_agree_than_disagree(offers, live, taken):
    """A tie keeps the model of a newcomer as well."""
    engine = Engine()
    assert fetched(Peers(offers), engine, 20, live=live)[0] == taken
    assert engine.against_own in ([], [False])


@pytest.mark.parametrize("digest", ["", "same"])
def test_the_model_of_a_training_node_that_makes_a_tie_is_compared_too(digest):
    engine = Engine()
    assert fetched(Peers({"a": at(30, digest), "b": at(30, digest), "c": at(9)}), engine, 20, live=True)[0] == 30
    assert engine.against_own == [True]


@pytest.mark.parametrize(
    ("here", "coming", "taken", "asked"),
    [
        ({"a": at(500)}, {"b": at(5), "c": at(6)}, 5, ["a", "bc"]),
        ({"a": at(500)}, {"b": at(0)}, None, ["a", "b"]),
        ({"a": at(500)}, {}, 500, ["a"]),
        ({"a": at(0)}, {"b": at(0)}, None, ["a"]),
        ({"a": at(5), "b": at(6), "c": at(7)}, {"d": at(8)}, 5, ["abc"]),
        ({"a": at(5), "b": at(6), "c": at(0)}, {"d": at(8)}, 5, ["abc"]),
    ],
)
def test_members_about_to_be_met_are_waited_for_where_fewer_than_three_have_a_model(here, coming, taken, asked):
    peers, left = Peers(here | coming), [[*coming]]

    async def more():
        await trio.sleep(2.0)
        return left.pop() if left else []

    liars = "a" if coming and taken else ()

    async def story():
        joining = ModelSync(transfer=peers, engine=Engine(liars if 500 in here.get("a", ()) else ()), report=Reports())
        return await joining.fetch([*here], 0, more=more)

    assert trio.run(story, clock=MockClock(autojump_threshold=0)) == taken
    assert peers.asked == [tuple(each) for each in asked]


peer_lists = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=20)


@given(places=peer_lists)
@examples(60)
def test_candidates_are_permuted_so_that_the_first_three_share_few_networks(places):
    traits = {f"p{i}": {f"net {net}", f"who {who}"} for i, (net, who) in enumerate(places)}
    peers = list(traits)
    order = disjoint(peers, traits.__getitem__)
    assert sorted(order) == sorted(peers)
    shared = Counter[str]()
    for place, peer in enumerate(order[:ASKED]):
        least = min(sum(shared[t] for t in traits[other]) for other in order[place:])
        assert sum(shared[t] for t in traits[peer]) == least
        shared.update(traits[peer])


def test_candidates_from_three_networks_come_first():
    nets = {"a": {"1"}, "b": {"1"}, "c": {"1"}, "d": {"2"}, "e": {"3"}}
    assert disjoint(list("abcde"), nets.__getitem__)[:ASKED] == ["a", "d", "e"]


def test_in_a_large_swarm_only_some_are_compared():
    looked: list[str] = []
    peers = [f"p{i}" for i in range(5000)]
    order = disjoint(peers, lambda peer: looked.append(peer) or ())
    assert order == peers
    assert len(looked) == COMPARED


def test_a_lost_engine_is_an_error_for_the_caller():
    class Lost:
        async def call(self, request):
            raise EngineError("died")

    with pytest.raises(EngineError):
        trio.run(
            partial(ModelSync(transfer=Peers({"a": at(5)}), engine=Lost(), report=Reports()).fetch, ["a"], 0),
            clock=MockClock(autojump_threshold=0),
        )
