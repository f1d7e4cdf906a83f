"""The initial model of a swarm of scripts comes from any peer that has it, and always equals the manifest's digest."""

import itertools
from contextlib import asynccontextmanager

import pytest
import trio

from starling.gossip import chunks
from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import MAX_CHUNK_BYTES, Chunk, ChunkQuery, Digests, DigestsQuery
from starling.node.config.initial_model import MAX_BYTES, Chunked
from starling.node.daemon.state.start_model import LONGEST_PAUSE_S, MOST_REPLIES, StartFile, StartModel, Ways, number
from starling.node.daemon.state.transfer import MAX_REPLIES, Transfer
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import address_of
from starling.node.status import snapshot as status
from tests.harness.daemons import Reports
from tests.harness.virtual import virtual

SWARM = "s" + "a" * 32
DATA = b"".join(at.to_bytes(4, "big") for at in range(750_000))  # 3 MB
LISTED = chunks.digests(DATA)
WANTED = Chunked(chunks.root(LISTED), len(DATA))


async def inline(work):
    await trio.sleep(1e-3)
    return work()


class Peer:
    """A node on the network with a state lane, and optionally the file."""

    def __init__(self, hub, name, folder, data=None):
        self.network, self.report, self.name = hub.join(name), Reports(), name
        self.transfer = Transfer(network=self.network, report=self.report, manifest=lambda _swarm: None)
        self.path = folder / name / "start.safetensors"
        self.path.parent.mkdir(exist_ok=True)
        if data is not None:
            self.path.write_bytes(data)
        self.start = StartModel(StartFile(self.path, WANTED, inline), SWARM, self.network, self.transfer, self.report)

    async def obtain(self, *peers, given=""):
        """Start with the addresses of these peers."""
        await self.start.obtain(given, Ways(lambda: tuple(map(address_of, peers)), self.network.dial))

    @property
    def held(self):
        return self.path.read_bytes() if self.path.exists() else None

    @property
    def files(self):
        return sorted(each.name for each in self.path.parent.iterdir())


class Liar:
    """Answers queries for the initial model with `answer(query)`; None: not at all."""

    def __init__(self, hub, name, answer):
        self.network, self._answer = hub.join(name), answer
        self.asked = []

    async def serve(self, task_status=trio.TASK_STATUS_IGNORED):
        task_status.started()
        async for item in self.network.inbound("state"):
            query = decode("state", item.peer, item.frame)
            self.asked.append(query)
            if (reply := self._answer(query)) is not None:
                await self.network.send(item.peer, "state", encode(reply))


def right(query):
    """Return what an honest peer answers."""
    if isinstance(query, DigestsQuery):
        return Digests(query.snapshot, query.offset, LISTED[query.offset :])
    return Chunk(query.snapshot, query.offset, DATA[query.offset : query.offset + MAX_CHUNK_BYTES])


@asynccontextmanager
async def swarm(tmp_path):
    """Return a function that makes a peer which serves its lane, and one that makes a liar."""
    hub = MemoryHub()
    async with trio.open_nursery() as nursery:

        async def peer(name, data=None):
            made = Peer(hub, name, tmp_path, data)
            await nursery.start(made.transfer.serve)
            return made

        async def liar(name, answer):
            made = Liar(hub, name, answer)
            await nursery.start(made.serve)
            return made

        yield peer, liar, nursery
        nursery.cancel_scope.cancel()


@virtual
async def test_a_newcomer_has_the_file_and_gives_it_to_the_next(tmp_path):
    async with swarm(tmp_path) as (peer, _, _):
        creator, second, third = await peer("creator", DATA), await peer("second"), await peer("third")
        await creator.obtain()
        assert creator.report.events == [], "nothing was fetched"
        await second.obtain("creator")
        assert second.held == DATA
        assert second.files == ["start.safetensors"]
        assert second.path.stat().st_mode & 0o777 == 0o600
        assert second.report.names == ["start_fetching", "start_fetched"]
        assert all(fields["size"] == len(DATA) for *_, fields in second.report.events)
        await third.obtain("second")
        assert third.held == DATA
        assert second.report.faults == third.report.faults == []


@virtual
async def test_the_status_shows_the_progress_of_the_download(tmp_path):
    async with swarm(tmp_path) as (peer, liar, nursery):
        slow = await liar("slow", lambda query: right(query) if query.offset < MAX_CHUNK_BYTES else None)
        newcomer = await peer("newcomer")
        nursery.start_soon(newcomer.obtain, "slow")
        await trio.sleep(5.0)
        (shown,) = newcomer.transfer.downloads.incoming
        assert isinstance(shown, status.Transfer)
        assert (shown.peer, shown.kind, shown.done_bytes, shown.total_bytes) == ("slow", "model", MAX_CHUNK_BYTES, len(DATA))
        assert slow.asked


@pytest.mark.parametrize(
    "lie",
    [
        lambda query: Chunk(query.snapshot, query.offset, bytes(len(right(query).data))),
        lambda query: Chunk(query.snapshot, query.offset, right(ChunkQuery(0, 0)).data[: len(right(query).data)][::-1]),
    ],
    ids=["zeros", "other bytes"],
)
@virtual
async def test_a_start_comes_from_the_honest_peer_where_another_lies(tmp_path, lie):
    """The liar gives the right digests, so that chunks are requested from it."""
    async with swarm(tmp_path) as (peer, liar, _):
        await liar("liar", lambda query: right(query) if isinstance(query, DigestsQuery) else lie(query))
        honest, newcomer = await peer("honest", DATA), await peer("newcomer")
        await honest.obtain()
        await newcomer.obtain("liar", "honest")
        assert newcomer.held == DATA
        assert newcomer.report.faults == [("liar", "state_digest_mismatch")]


@pytest.mark.parametrize(
    ("digests", "faults"),
    [(chunks.digests(b"x" + DATA[1:]), 1), (LISTED[:-32], 1), (LISTED + bytes(32), 1), (LISTED[:-1], 1), (b"", 0)],
    ids=["another root", "too short", "too long", "cut off", "none"],
)
@virtual
async def test_a_peer_with_wrong_digests_is_blamed_and_not_requested_again(tmp_path, digests, faults):
    async with swarm(tmp_path) as (peer, liar, _):
        bad = await liar("liar", lambda query: Digests(query.snapshot, query.offset, digests))
        honest, newcomer = await peer("honest", DATA), await peer("newcomer")
        await honest.obtain()
        await newcomer.obtain("liar", "honest")
        assert newcomer.held == DATA
        assert newcomer.report.faults == [("liar", "state_digest_mismatch")] * faults
        assert not [query for query in bad.asked if isinstance(query, ChunkQuery)]


@pytest.mark.parametrize(
    "answer",
    [
        lambda query: Chunk(query.snapshot, query.offset, right(query).data[:-1]),
        lambda query: Chunk(query.snapshot, query.offset, (right(query).data + b"x")[-MAX_CHUNK_BYTES:]),
        lambda query: Chunk(query.snapshot + 1, query.offset, right(query).data),
        lambda query: Chunk(query.snapshot, query.offset, b""),
        lambda query: None,
    ],
    ids=["truncated", "shifted", "of another snapshot", "empty", "silent"],
)
@virtual
async def test_a_peer_with_bad_chunks_does_not_prevent_the_download(tmp_path, answer):
    async with swarm(tmp_path) as (peer, liar, _):
        await liar("liar", lambda query: right(query) if isinstance(query, DigestsQuery) else answer(query))
        honest, newcomer = await peer("honest", DATA), await peer("newcomer")
        await honest.obtain()
        with trio.fail_after(200.0):
            await newcomer.obtain("liar", "honest")
        assert newcomer.held == DATA


@virtual
async def test_an_unavailable_start_is_reported_once_and_requested_until_available(tmp_path):
    async with swarm(tmp_path) as (peer, liar, nursery):
        await liar("liar", lambda query: right(query) if isinstance(query, DigestsQuery) else right(ChunkQuery(0, 0)))
        empty, newcomer = await peer("empty"), await peer("newcomer")
        nursery.start_soon(newcomer.obtain, "liar", "empty", "gone")
        await trio.sleep(500.0)
        assert newcomer.report.names == ["start_fetching", "start_missing"]
        assert "copy it to" in newcomer.report.texts[1]
        assert newcomer.files == ["start.part"]
        empty.path.write_bytes(DATA)
        await empty.obtain()
        await trio.sleep(2 * LONGEST_PAUSE_S)
        assert newcomer.held == DATA
        assert newcomer.report.names[-1] == "start_fetched"


@virtual
async def test_chunks_come_from_several_peers_and_each_peer_is_asked_at_one_address(tmp_path):
    async with swarm(tmp_path) as (peer, liar, _):
        givers = [await liar(name, right) for name in "abc"]
        newcomer = await peer("newcomer")
        await newcomer.obtain("a", "b", "c", "a", "a")
        assert newcomer.held == DATA
        asked = [[query.offset for query in each.asked if isinstance(query, ChunkQuery)] for each in givers]
        assert all(asked)
        assert sorted(itertools.chain(*asked)) == [0, MAX_CHUNK_BYTES, 2 * MAX_CHUNK_BYTES]
        assert [sum(isinstance(query, DigestsQuery) for query in each.asked) for each in givers] == [1, 1, 1]


@pytest.mark.parametrize("damaged", [b"x" + DATA[1:], DATA[:-1], DATA + b"more", b"x" * 99, b""])
@virtual
async def test_only_damaged_chunks_of_a_file_are_fetched_again(tmp_path, damaged):
    async with swarm(tmp_path) as (peer, liar, _):
        giver, newcomer = await liar("giver", right), await peer("newcomer", damaged)
        await newcomer.obtain("giver")
        assert newcomer.held == DATA
        assert newcomer.files == ["start.safetensors"]
        offsets = range(0, len(DATA), MAX_CHUNK_BYTES)
        wrong = {at for at in offsets if damaged[at : at + MAX_CHUNK_BYTES] != DATA[at : at + MAX_CHUNK_BYTES]}
        wrong -= {2 * MAX_CHUNK_BYTES} if len(damaged) > len(DATA) else set()  # only longer
        assert {query.offset for query in giver.asked if isinstance(query, ChunkQuery)} == wrong


@virtual
async def test_what_was_received_before_a_restart_is_not_fetched_again(tmp_path):
    async with swarm(tmp_path) as (peer, liar, _):
        await liar("half", lambda query: right(query) if query.offset != MAX_CHUNK_BYTES else None)
        giver, newcomer = await liar("giver", right), await peer("newcomer")
        with trio.move_on_after(5.0):
            await newcomer.obtain("half")
        assert newcomer.files == ["start.part"]
        await newcomer.obtain("giver")
        assert newcomer.held == DATA
        assert {query.offset for query in giver.asked if isinstance(query, ChunkQuery)} == {MAX_CHUNK_BYTES}


@virtual
async def test_the_owner_s_file_is_copied_if_it_has_the_right_digest(tmp_path):
    async with swarm(tmp_path) as (peer, _, _):
        newcomer = await peer("newcomer")
        (tmp_path / "mine").write_bytes(DATA)
        (tmp_path / "other").write_bytes(DATA[1:])
        with pytest.raises(ConfigError, match="start: "):
            await newcomer.obtain(given=str(tmp_path / "other"))
        await newcomer.obtain(given=str(tmp_path / "mine"))
        assert newcomer.held == DATA
        assert newcomer.report.events == []


@virtual
async def test_a_full_disk_ends_the_node_in_one_line(tmp_path):
    async with swarm(tmp_path) as (peer, liar, _):
        await liar("giver", right)
        newcomer = await peer("newcomer")
        newcomer.path.parent.rmdir()
        with pytest.raises(GossipError, match=r"cannot be written to .*: No such file or directory; free disk space") as raised:
            await newcomer.obtain("giver")
        assert "\n" not in str(raised.value)


@virtual
async def test_strangers_may_fetch_the_initial_model_and_only_members_the_current_one(tmp_path):
    """A newcomer needs the file before it is a member."""

    class Engine:
        async def call(self, request):
            raise AssertionError(request)

    async with swarm(tmp_path) as (peer, _, _):
        member, newcomer = await peer("member", DATA), await peer("newcomer")
        await member.obtain()
        member.transfer.give(Engine(), lambda _peer: False)
        await newcomer.obtain("member")
        assert newcomer.held == DATA
        with pytest.raises(trio.TooSlowError):
            await newcomer.transfer.asking.ask("member", Chunk, ChunkQuery(1, 0))


@virtual
async def test_without_the_swarm_id_a_peer_gets_no_byte(tmp_path):
    async with swarm(tmp_path) as (peer, _, _):
        member, stranger = await peer("member", DATA), await peer("stranger")
        await member.obtain()
        await stranger.network.dial(address_of("member"))
        for guess in (0, 1, number("s" + "b" * 32)):
            reply = await stranger.transfer.asking.ask("member", Chunk, ChunkQuery(guess, 0))
            assert reply.data == b""
        assert len({number(f"s{each}") for each in range(99)}) == 99
        assert 0 <= number(SWARM) < 2**62


@virtual
async def test_a_chunk_damaged_on_disk_is_not_sent(tmp_path):
    async with swarm(tmp_path) as (peer, _, _):
        member, newcomer = await peer("member", DATA), await peer("newcomer")
        await member.obtain()
        member.path.write_bytes(b"x" + DATA[1:])
        await newcomer.network.dial(address_of("member"))
        asked = [(0, b""), (MAX_CHUNK_BYTES, right(ChunkQuery(0, MAX_CHUNK_BYTES)).data), (5, b""), (2**40, b"")]
        for offset, data in asked:
            reply = await newcomer.transfer.asking.ask("member", Chunk, ChunkQuery(number(SWARM), offset))
            assert reply.data == data


@virtual
async def test_all_start_downloads_together_have_a_bounded_number_of_chunks_in_flight(tmp_path):
    """The readers take nothing: every reply stays in flight until its deadline."""
    async with swarm(tmp_path) as (peer, _, _):
        member = await peer("member", DATA)
        await member.obtain()
        under_way, most = 0, 0

        async def stuck(*_given):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                await trio.sleep_forever()
            finally:
                under_way -= 1

        member.network.send, peers = stuck, [f"p{at}" for at in range(20)]
        for name in peers:
            reader = (await peer(name)).network
            await reader.dial(address_of("member"))
            for offset in range(0, 9 * MAX_CHUNK_BYTES, MAX_CHUNK_BYTES):
                await reader.send("member", "state", encode(ChunkQuery(number(SWARM), offset)))
        await trio.sleep(5.0)
        assert most == MOST_REPLIES < MAX_REPLIES * len(peers)
        await trio.sleep(60.0)
        assert under_way == 0


def test_the_digests_of_the_largest_file_are_one_message():
    assert chunks.DIGEST_BYTES * chunks.count(MAX_BYTES) == MAX_CHUNK_BYTES
