"""How long a late joiner waits, how often it asks, and how it reports a long download."""

import itertools

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from starling.gossip import chunks
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import MAX_CHUNK_BYTES, Chunk, ChunkQuery, Digests, DigestsQuery, StateOffer, StateQuery
from starling.node.daemon.state import asking, fetching
from starling.node.daemon.state import transfer as lanes
from starling.node.daemon.state.asking import SLOW_BYTES_PER_S
from starling.node.daemon.state.downloads import Offered
from starling.node.daemon.state.partial import ModelFile
from starling.node.daemon.state.snapshots import SNAPSHOT_FRESH_S
from starling.node.daemon.state.transfer import Transfer
from starling.node.net.api import Inbound
from starling.node.rpc import calls
from starling.node.status import snapshot as status
from tests.harness.daemons import Reports


class SlowLine:
    """A peer that takes six seconds for a chunk."""

    peer_id = "me"

    def __init__(self, state: bytes, nursery: trio.Nursery) -> None:
        self._state, self._nursery = state, nursery
        self._send, self._receive = trio.open_memory_channel(10)

    def inbound(self, _lane):
        return self._receive

    async def send(self, peer, lane, frame):
        query = decode("state", "me", frame)
        self._nursery.start_soon(self._answer, peer, query)

    async def _answer(self, peer, query):
        if isinstance(query, DigestsQuery):
            await self._send.send(Inbound(peer, "state", encode(Digests(1, 0, chunks.digests(self._state)))))
            return
        await trio.sleep(6.0)
        part = self._state[query.offset : query.offset + MAX_CHUNK_BYTES]
        await self._send.send(Inbound(peer, "state", encode(Chunk(query.snapshot, query.offset, part))))


def test_a_long_download_reports_its_progress():
    state, report = bytes(5 * MAX_CHUNK_BYTES + 7), Reports()

    async def story():
        async with trio.open_nursery() as nursery:
            transfer = Transfer(network=SlowLine(state, nursery), report=report, manifest=lambda _swarm: None)
            await nursery.start(transfer.serve)
            offer = StateOffer(1, 1, 5, len(state), chunks.root(chunks.digests(state)), b"")
            began, seen = trio.current_time(), []

            async def look():
                await trio.sleep(13.0)
                seen.append(transfer.downloads.incoming)

            nursery.start_soon(look)
            assert transfer.downloads.incoming == ()
            assert await transfer.downloads.download(Offered("peer", offer)) == state
            assert seen == [(status.Transfer("peer", "model", 2 * MAX_CHUNK_BYTES, len(state), 13.0),)]
            assert transfer.downloads.incoming == ()
            took_s = trio.current_time() - began
            assert len(report.texts) == 3 <= took_s / fetching.PROGRESS_S
            assert [text.split(" of ")[0] for text in report.texts] == ["39 %", "79 %", "100 %"]
            nursery.cancel_scope.cancel()

    trio.run(story, clock=MockClock(autojump_threshold=0))


class Lane:
    """A state lane whose peers answer as the test says.

    Args:
        answers: (peer, how often it was asked before, query) -> seconds until its answer and the answer; None: the answer is lost.
    """

    peer_id = "me"

    def __init__(self, answers, nursery: trio.Nursery) -> None:
        self._answers, self._nursery = answers, nursery
        self.send_in, self._receive = trio.open_memory_channel(100)
        self.asked: dict[str, list[float]] = {}
        self.said: list[tuple[str, object]] = []
        self.report = Reports()

    def inbound(self, _lane):
        return self._receive

    async def send(self, peer, lane, frame):
        message = decode("state", "me", frame)
        self.said.append((peer, message))
        times = self.asked.setdefault(peer, [])
        times.append(trio.current_time())
        answer = self._answers(peer, len(times) - 1, message)
        if answer is not None:
            self._nursery.start_soon(self._later, peer, *answer)

    async def _later(self, peer, after_s, message):
        await trio.sleep(after_s)
        await self.send_in.send(Inbound(peer, "state", encode(message)))


def told(answers, story, partial=None):
    """Run a story with a transfer whose peers answer like this; return its result and the lane."""

    async def bounded():
        async with trio.open_nursery() as nursery:
            lane = Lane(answers, nursery)
            transfer = Transfer(network=lane, report=lane.report, manifest=lambda _swarm: None, partial=partial)
            transfer.expect(OPENED)
            await nursery.start(transfer.serve)
            result = await story(transfer, lane)
            nursery.cancel_scope.cancel()
        return result, lane

    return trio.run(bounded, clock=MockClock(autojump_threshold=0))


OPENED = calls.Opened(10, b"schema", "loss", higher_is_better=False, device="cpu", samples=1, resumed=False, round=0)


def offer(query, size=40):
    return StateOffer(query.nonce, 1, 5, size, b"d" * 32, b"schema")


def test_lost_requests_are_repeated_soon_and_busy_peers_are_not_flooded():
    async def story(transfer, _lane):
        return await transfer.offers(["silent"])

    found, lane = told(lambda *_: None, story)
    assert found == []
    pauses = [later - earlier for earlier, later in itertools.pairwise(lane.asked["silent"])]
    assert pauses[:4] == pytest.approx([asking.FIRST_ASK_S, 2 * asking.FIRST_ASK_S, 4 * asking.FIRST_ASK_S, asking.ASK_AGAIN_S])
    assert set(pauses[3:]) == {asking.ASK_AGAIN_S}
    assert asking.FIRST_ASK_S <= 0.25
    assert len(pauses) <= asking.REPLY_S / asking.ASK_AGAIN_S + 3


@pytest.mark.parametrize("took_s", [0.0, 2.0])
def test_after_two_offers_the_third_is_awaited_for_about_the_same_time_again(took_s):
    async def story(transfer, _lane):
        began = trio.current_time()
        found = await transfer.offers(["a", "b", "silent"])
        return [offered.peer for offered in found], trio.current_time() - began

    (peers, waited_s), _ = told(lambda peer, _n, query: None if peer == "silent" else (took_s, offer(query)), story)
    assert peers == ["a", "b"]
    assert waited_s == pytest.approx(2 * took_s + lanes.OFFER_GRACE_S, abs=0.01)


def test_two_offers_that_contradict_each_other_do_not_hurry_a_third():
    async def story(transfer, _lane):
        return await transfer.offers(["far", "here", "slow"], newer_than=20)

    def answers(peer, _n, query):
        return (5.0 if peer == "slow" else 0.0), replace(offer(query), round=500 if peer == "far" else 5)

    found, _ = told(answers, story)
    assert [offered.peer for offered in found] == ["far", "here", "slow"]


def test_a_node_without_a_model_does_not_shorten_others_deadlines():
    def answers(peer, _n, query):
        return (3.0, offer(query)) if peer == "slow" else (0.0, offer(query, size=0))

    async def story(transfer, _lane):
        return await transfer.offers(["a", "b", "c", "slow"])

    found, _ = told(answers, story)
    assert [offered.peer for offered in found if offered.offer.size] == ["slow"]


@pytest.mark.parametrize("changes", [{"size": 2**62}, {"schema": b"other"}])
def test_an_offer_of_a_different_model_layout_is_a_fault(changes):
    async def story(transfer, lane):
        return await transfer.offers(["liar"]), lane.report.faults

    result, _ = told(lambda _peer, _n, query: (0.0, replace(offer(query), **changes)), story)
    assert result == ([], [("liar", "state_of_another_model")])


@pytest.mark.parametrize(("sent", "faults"), [(b"x" * 40, [("liar", "state_digest_mismatch")]), (b"", []), (b"short", [])])
def test_a_wrong_digest_is_a_fault_and_a_missing_model_is_not(sent, faults):
    async def story(transfer, lane):
        return await transfer.downloads.download(Offered("liar", offer(StateQuery(1)))), lane.report.faults

    result, _ = told(lambda _peer, _n, query: (0.0, Chunk(query.snapshot, query.offset, sent)), story)
    assert result == (None, faults)


def test_requests_during_a_snapshot_share_it():
    made = []

    class Engine:
        async def call(self, call):
            assert isinstance(call, calls.Snapshot)
            await trio.sleep(0.7)
            made.append(trio.current_time())
            return calls.SnapshotInfo(len(made), 40, b"d" * 32, 5, b"schema", b"")

    async def story(transfer, lane):
        transfer.give(Engine(), lambda _peer: True)
        for number in range(4):
            await lane.send_in.send(Inbound(f"p{number % 2}", "state", encode(StateQuery(number))))
            await trio.sleep(0.2)
        await trio.sleep(1.0)
        first = len(made)
        await trio.sleep(SNAPSHOT_FRESH_S)
        await lane.send_in.send(Inbound("p0", "state", encode(StateQuery(9))))
        await trio.sleep(1.0)
        return first

    first, lane = told(lambda *_: None, story)
    assert first == 1
    assert len(made) == 2
    assert [(peer, reply.nonce, reply.snapshot) for peer, reply in lane.said] == [
        *((f"p{number % 2}", number, 1) for number in range(4)),
        ("p0", 9, 2),
    ]


def test_a_large_model_is_waited_for_as_long_as_a_busy_engine_may_take_to_pack_it():
    """100 million parameters: 40 s for a snapshot after a local step. It is made once, and not restarted for each query."""
    made = []
    large = replace(OPENED, parameters=10**8)

    class Engine:
        async def call(self, call):
            await trio.sleep(40.0)
            made.append(call)
            return calls.SnapshotInfo(len(made), 4 * 10**8, b"d" * 32, 5, b"schema", b"")

    async def story(transfer, lane):
        transfer.expect(large)
        began = trio.current_time()
        found = await transfer.offers(["busy", "silent"])
        waited_s = trio.current_time() - began
        transfer.give(Engine(), lambda _peer: True)
        for _ in range(30):
            await lane.send_in.send(Inbound("joiner", "state", encode(StateQuery(7))))
            await trio.sleep(1.0)
        await trio.sleep(11.0)
        return [offered.peer for offered in found], waited_s

    replies = {"busy": lambda query: (40.0, offer(query, size=4 * 10**8)), "silent": lambda _: None}
    (peers, waited_s), lane = told(lambda peer, _n, query: replies.get(peer, replies["silent"])(query), story)
    assert peers == ["busy"]
    assert 40.0 < waited_s < 70.0
    assert len(made) == 1
    assert {reply.snapshot for _, reply in lane.said if isinstance(reply, StateOffer)} == {1}


def test_a_new_offer_does_not_interrupt_readers_of_the_snapshot():
    state, made = bytes(MAX_CHUNK_BYTES), []

    class Engine:
        async def call(self, call):
            if isinstance(call, calls.Snapshot):
                made.append(trio.current_time())
                return calls.SnapshotInfo(len(made), len(state), b"d" * 32, 5, b"schema", b"")
            assert isinstance(call, calls.ReadChunk)
            there = call.snapshot == len(made)
            return calls.ChunkRead(state[call.offset : call.offset + call.length] if there else b"")

    async def story(transfer, lane):
        transfer.give(Engine(), lambda _peer: True)
        for number in range(24):
            await lane.send_in.send(Inbound("curious", "state", encode(StateQuery(number))))
            await trio.sleep(0.1)  # a peer that reads has received an offer
            if number % 6 == 0:
                offset = number // 6 % 2 * MAX_CHUNK_BYTES // 2
                await lane.send_in.send(Inbound("reader", "state", encode(ChunkQuery(1, offset))))
            await trio.sleep(0.9)

    _, lane = told(lambda *_: None, story)
    slow_s = len(state) / SLOW_BYTES_PER_S
    chunks = [message for peer, message in lane.said if peer == "reader"]
    assert [bool(chunk.data) for chunk in chunks] == [True, True, True, False]
    assert made[1] - made[0] == pytest.approx(slow_s + SNAPSHOT_FRESH_S, abs=1.5)
    assert all(later - earlier <= 2.0 for earlier, later in itertools.pairwise(made[2:]))  # these replies are never read


def test_impatient_requests_get_few_answers_at_once_and_delay_no_other_peer():
    """A reply may be a chunk of 1 MiB to a peer that reads nothing for ten seconds."""
    asked = 0

    class Engine:
        async def call(self, call):
            nonlocal asked
            asked += 1
            await trio.sleep(0.5)
            return calls.ChunkRead(b"chunk")

    async def story(transfer, lane):
        transfer.give(Engine(), lambda _peer: True)
        for offset in range(60):
            await lane.send_in.send(Inbound("greedy", "state", encode(ChunkQuery(1, offset))))
        await lane.send_in.send(Inbound("reader", "state", encode(ChunkQuery(1, 0))))
        await trio.sleep(1.0)
        at_once = asked
        await lane.send_in.send(Inbound("greedy", "state", encode(ChunkQuery(1, 99))))
        await trio.sleep(1.0)
        return at_once

    at_once, lane = told(lambda *_: None, story)
    assert at_once == lanes.MAX_REPLIES + 1
    assert [peer for peer, _ in lane.said].count("reader") == 1
    assert sorted(reply.offset for peer, reply in lane.said if peer == "greedy") == [*range(lanes.MAX_REPLIES), 99]


STATE = bytes(range(251)) * (12 * MAX_CHUNK_BYTES // 251)
LISTED, CHUNKS = chunks.digests(STATE), chunks.count(len(STATE))


def holders(*peers):
    return [Offered(peer, StateOffer(1, 7, 5, len(STATE), chunks.root(LISTED), b"schema")) for peer in peers]


def giving(query, state=STATE):
    if isinstance(query, DigestsQuery):
        return Digests(query.snapshot, query.offset, chunks.digests(state)[query.offset :])
    return Chunk(query.snapshot, query.offset, state[query.offset : query.offset + MAX_CHUNK_BYTES])


def fetch(answers, *peers, partial=None):
    """Download STATE from these peers; return it, the faults, the reported texts, the duration, and the chunks asked of each peer."""

    async def story(transfer, lane):
        first, *others = holders(*peers)
        began = trio.current_time()
        state = await transfer.downloads.download(first, others)
        if isinstance(state, ModelFile):
            held, state = state, state.path.read_bytes()
            held.delete()
        asked = [(peer, query.offset // MAX_CHUNK_BYTES) for peer, query in lane.said if isinstance(query, ChunkQuery)]
        return state, lane.report.faults, lane.report.texts, trio.current_time() - began, asked

    return told(answers, story, partial)[0]


def test_a_model_is_downloaded_from_several_peers_at_once():
    def answers(_peer, _n, query):
        return (1.0, giving(query)) if isinstance(query, ChunkQuery) else (0.0, giving(query))

    alone, faults, _, alone_s, _ = fetch(answers, "a")
    state, _, _, took_s, asked = fetch(answers, "a", "b", "c")
    assert alone == state == STATE
    assert faults == []
    assert took_s <= alone_s / 2
    assert {peer for peer, _ in asked} == {"a", "b", "c"}
    assert sorted(index for _, index in asked) == list(range(CHUNKS)), "each once"


def test_a_wrong_chunk_blames_its_peer_and_the_download_continues():
    def answers(peer, _n, query):
        bad = peer == "liar" and isinstance(query, ChunkQuery)
        return 0.1, giving(query, bytes(len(STATE)) if bad else STATE)

    state, faults, _, _, asked = fetch(answers, "a", "b", "liar")
    assert state == STATE
    assert faults == [("liar", "state_digest_mismatch")]
    assert [peer for peer, _ in asked].count("liar") <= fetching.WINDOW + 1


def test_wrong_digests_are_a_fault_of_their_sender():
    state, faults, _, _, asked = fetch(lambda peer, _n, query: (0.0, giving(query, bytes(len(STATE)) if peer == "a" else STATE)), "a", "b")
    assert state == STATE
    assert faults == [("a", "state_digest_mismatch")]
    assert {peer for peer, _ in asked} == {"b"}
    assert fetch(lambda *_: None, "a")[:2] == (None, []), "nobody answers"


def test_an_interrupted_download_resumes_and_verifies_the_stored_chunks(tmp_path):
    path = tmp_path / "state.part"

    def the_first_seven(_peer, _n, query):
        return (0.0, giving(query)) if query.offset < 7 * MAX_CHUNK_BYTES else None

    cut, _, _, _, _ = fetch(the_first_seven, "a", "b", partial=path)
    assert cut is None
    with path.open("r+b") as file:
        file.write(b"damaged")
    state, faults, texts, _, again = fetch(lambda _peer, _n, query: (1.0, giving(query)), "b", "c", partial=path)
    assert (state == STATE, faults) == (True, [])
    asked = {index for _, index in again}
    assert 0 in asked, "the damaged one"
    assert len(asked) == CHUNKS - 7 + 1
    assert any("are here from before" in text for text in texts)
    assert not list(tmp_path.iterdir()), "neither what was kept nor the file that the model came in"


def test_partial_downloads_are_deleted(tmp_path):
    (tmp_path / "model-old.part").write_bytes(b"left")
    state, *_ = fetch(lambda *_: None, "a", partial=tmp_path / "state.part")
    assert state is None
    fetch(lambda _peer, _n, query: (0.0, giving(query)) if query.offset < MAX_CHUNK_BYTES else None, "a", partial=tmp_path / "state.part")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_does_not_stop_the_download(tmp_path):
    state, _, texts, _, _ = fetch(lambda _peer, _n, query: (1.0, giving(query)), "b", "c", partial=tmp_path / "none" / "state.part")
    assert state == STATE
    assert [text for text in texts if "is not kept for a restart: No such file" in text]


def test_slow_links_get_one_chunk_request_at_a_time():
    def answers(_peer, _n, query):
        return (7.0, giving(query)) if isinstance(query, ChunkQuery) else (0.0, giving(query))

    state, _, _, took_s, asked = fetch(answers, "a")
    assert state == STATE
    assert [index for _, index in asked] == list(range(CHUNKS))
    assert took_s == pytest.approx(CHUNKS * 7.0)


def test_the_only_chunk_of_a_small_model_is_asked_for_again_as_soon_as_it_is_late():
    """It waits behind no other chunk. With short rounds the node would fall behind during the four seconds that several chunks have."""
    model = bytes(4000)

    def answers(_peer, n, query):
        return None if n < 2 else (0.01, giving(query, model))  # two messages are lost

    async def story(transfer, _lane):
        offered = StateOffer(1, 7, 5, len(model), chunks.root(chunks.digests(model)), b"schema")
        began = trio.current_time()
        return await transfer.downloads.download(Offered("a", offered), ()), trio.current_time() - began

    (state, took_s), _ = told(answers, story)
    assert state == model
    assert took_s < 1.0


def test_digests_are_served_for_the_current_snapshot_only():
    class Engine:
        async def call(self, call):
            await trio.lowlevel.checkpoint()
            assert isinstance(call, calls.Snapshot)
            return calls.SnapshotInfo(4, len(STATE), chunks.root(LISTED), 5, b"schema", LISTED)

    async def story(transfer, lane):
        await lane.send_in.send(Inbound("a", "state", encode(DigestsQuery(4, 0))))
        transfer.give(Engine(), lambda _peer: True)
        for query in (StateQuery(1), DigestsQuery(4, 32), DigestsQuery(3, 0), DigestsQuery(4, 1 << 40)):
            await lane.send_in.send(Inbound("a", "state", encode(query)))
            await trio.sleep(0.1)

    said = [message for _, message in told(lambda *_: None, story)[1].said if isinstance(message, Digests)]
    assert said == [Digests(4, 0, b""), Digests(4, 32, LISTED[32:]), Digests(3, 0, b""), Digests(4, 1 << 40, b"")]


def test_outer_parameters_are_offered_by_digest_beside_the_model():
    """Their chunks' digests stay, however many other snapshots there are; what is not stored is offered with 0 bytes."""
    given = {bytes([number]) * 8: number for number in range(1, 4)}

    class Engine:
        async def call(self, call):
            await trio.lowlevel.checkpoint()
            if isinstance(call, calls.Snapshot):
                return calls.SnapshotInfo(9, len(STATE), chunks.root(LISTED), 5, b"schema", LISTED)
            assert isinstance(call, calls.SnapshotOuter)
            if call.outer not in given:
                return calls.Refused("state", "these outer parameters are not stored here")
            listed = bytes([given[call.outer]]) * 32
            return calls.SnapshotInfo(given[call.outer], 7, chunks.root(listed), 0, b"schema", listed)

    async def story(transfer, lane):
        transfer.give(Engine(), lambda _peer: True)
        for query in (*(StateQuery(1, outer) for outer in given), StateQuery(2, bytes(8)), StateQuery(3)):
            await lane.send_in.send(Inbound("a", "state", encode(query)))
            await trio.sleep(0.1)
        for number in (*given.values(), 9, 4):
            await lane.send_in.send(Inbound("a", "state", encode(DigestsQuery(number, 0))))
            await trio.sleep(0.1)

    said = [message for _, message in told(lambda *_: None, story)[1].said]
    offers = [(it.nonce, it.snapshot, it.size) for it in said if isinstance(it, StateOffer)]
    assert offers == [(1, 1, 7), (1, 2, 7), (1, 3, 7), (2, 0, 0), (3, 9, len(STATE))]
    digests = [it.data for it in said if isinstance(it, Digests)]
    assert digests == [*(bytes([number]) * 32 for number in given.values()), LISTED, b""]


def test_of_outer_parameters_the_first_offer_begins_the_wait_for_others():
    """They are equal by digest, so one is enough; of models two are needed."""

    async def story(transfer, _lane):
        transfer.expect(OPENED)
        began = trio.current_time()
        found = await transfer.offers(["a", "silent"], {"a": b"12345678", "silent": b"abcdefgh"})
        return [it.peer for it in found], trio.current_time() - began

    def answers(peer, _n, query):
        assert query.outer == (b"12345678" if peer == "a" else b"abcdefgh")
        return (0.5, offer(query, size=9)) if peer == "a" else None

    (peers, waited_s), _ = told(answers, story)
    assert peers == ["a"]
    assert waited_s == pytest.approx(2 * 0.5 + lanes.OFFER_GRACE_S, abs=0.2)


@pytest.mark.parametrize("silent", ["from the start", "after its digests", "half way", "but for one now and then"])
def test_a_silent_holder_of_the_same_model_costs_a_few_seconds(silent):
    """Of three, each with a chunk in half a second; the chunks that it owes are asked of the others, and what it gave is kept."""

    def answers(peer, n, query):
        took_s = 0.5 if isinstance(query, ChunkQuery) else 0.05
        if peer == "silent" and (isinstance(query, ChunkQuery) or silent != "after its digests"):
            if silent == "but for one now and then":
                took_s = 4.5
            elif silent != "half way" or n > 3:
                return None
        return took_s, giving(query)

    usual_s = fetch(lambda _peer, _n, query: (0.5 if isinstance(query, ChunkQuery) else 0.05, giving(query)), "a", "b", "c")[3]
    state, faults, _, took_s, asked = fetch(answers, "silent", "b", "c")
    assert state == STATE
    assert faults == []
    assert took_s <= usual_s + fetching.QUEUED_S + 2.0 * fetching.POLL_S
    assert len({(peer, index) for peer, index in asked}) <= CHUNKS + fetching.WINDOW
