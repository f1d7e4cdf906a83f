"""Hostile identities on real sockets against real processes: exchanges that are left to the honest, and what many identities gain.

What is measured is a ratio within one run, of spans that take turns, since other work on the machine would else be taken for the attack's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count, cycle

import pytest
import trio

from starling.gossip.overlay.ranks import ranked
from starling.gossip.overlay.sticky import Sticky
from starling.gossip.wire.frames import encode
from starling.gossip.wire.schema import MAX_RECORDS, Spread
from starling.node.admission import credential, invite
from starling.node.admission.chain import bind
from tests.harness.hostile import key
from tests.harness.hostile_sockets import RealStranger, stranger
from tests.harness.processes import ENDLESS, OWN, starling, status_of, terminals, training, until

NODES = 4
SPANS, SPAN_S = 4, 5.0  # undisturbed and disturbed by turns, so many of each
PER_S = {"versions": 190.0, "fresh records": 20.0}  # frames, of all together
LEFT = 0.7  # of undisturbed exchanges

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.acceptance]


def begun(terminal, folder, *settings: str) -> list:
    """Four nodes that train with one another -> their folders."""
    agreed = " ".join((ENDLESS.replace("partition.shards=2", f"partition.shards={NODES}"), *settings))
    founder = terminal(f"starling found {agreed} {OWN} --shard 0 --dir 0", folder, "0")
    founder.until(founder.first_line)
    folders = [folder / str(index) for index in range(NODES)]
    until("the founder does not begin", lambda: status_of(folders[0]))
    for index in range(1, NODES):
        text = starling("invite", "--dir", "0", cwd=folder).split()[-1]
        terminal(f"starling join {text} {OWN} --shard {index} --dir {index}", folder, str(index))
    until("they do not begin", lambda: all((now := training(it, beyond=2)) and now.members == NODES for it in folders))
    return folders


def committed(folders) -> int:
    return sum(status_of(it).exchanges.committed for it in folders)


def versions(hostile: RealStranger) -> Iterator[bytes]:
    """It is here, it has left, it is here."""
    for version in count():
        yield encode(Spread((hostile.record(version=version, status=("alive", "left")[version % 2]),)))


def fresh_records(hostile: RealStranger, frames: int) -> list[bytes]:
    """Signed beforehand: its processor is not the victim's."""
    keys = [key(hostile.peer, each) for each in range(800)]
    named = cycle((each, version) for version in range(frames) for each in keys)
    return [
        encode(Spread(tuple(hostile.record(each, version=version) for each, version in (next(named) for _ in range(MAX_RECORDS)))))
        for _ in range(frames)
    ]  # fmt: skip


async def share_left(folders, what: str, hostiles: list[RealStranger]) -> tuple[float, int, int]:
    """-> committed exchanges while they talk over those while they do not, and both numbers"""
    peers = [await hostiles[0].dial(status_of(it).addresses[0]) for it in folders]
    for hostile in hostiles[1:]:
        for it in folders:
            await hostile.dial(status_of(it).addresses[0])
    each = PER_S[what] / len(hostiles)
    frames = {
        it: versions(it) if what == "versions" else iter(fresh_records(it, int(SPANS * SPAN_S * each) + 2 * SPANS))
        for it in hostiles
    }
    got = {False: 0, True: 0}
    for span in range(2 * SPANS):
        async with trio.open_nursery() as nursery:
            if span % 2:
                for place, hostile in enumerate(hostiles):
                    nursery.start_soon(hostile.keep_saying, frames[hostile], peers[place:] + peers[:place], each)
            before = await trio.to_thread.run_sync(committed, folders)
            await trio.sleep(SPAN_S)
            got[bool(span % 2)] += await trio.to_thread.run_sync(committed, folders) - before
            nursery.cancel_scope.cancel()
    return got[True] / got[False], got[True], got[False]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("who", ["four strangers", "one invited"])
@pytest.mark.parametrize("what", PER_S)
def test_exchanges_of_real_processes_go_on_while_records_flap_and_pour_in(tmp_path, warm_engines, what, who):
    with terminals() as terminal:
        folders = begun(terminal, tmp_path, *(["--set admission.kind=invite"] if who == "one invited" else []))
        swarm = status_of(folders[0]).swarm

        async def attack():
            async with AsyncExitStack() as stack:
                if who == "one invited":
                    given = invite.decode(starling("invite", "--dir", "0", cwd=tmp_path).split()[-1])
                    mine = key("invited")
                    chain = bind(given.chain, given.bearer, mine.peer_id, swarm)
                    papers = credential.encode(credential.Credential(chain=chain))
                    hostiles = [await stack.enter_async_context(stranger(swarm, "invited", credential=papers))]
                else:
                    hostiles = [await stack.enter_async_context(stranger(swarm, "flaps", each)) for each in range(4)]
                return await share_left(folders, what, hostiles)

        share, during, without = trio.run(attack)
    print(f"\n{what}, {who}: {during} exchanges during, {without} without: {share:.2f}")
    assert share >= LEFT
