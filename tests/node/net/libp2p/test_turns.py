"""Strangers' handshakes in turn, within a share of processor time."""

from itertools import count

import pytest
import trio

from starling.node.net.libp2p.location import Location
from starling.node.net.libp2p.turns import AT_ONCE_S, FIRST_S, MAX_WAITING, SHARE, WAIT_S, WHOLE, Ration, Turns, metered
from tests.harness.virtual import virtual

HANDSHAKE_S = FIRST_S / WHOLE


def flood(turns: Turns, prefixes: int, per_s: int, seconds: int, handshake_s: float) -> int:
    """Let connections of many prefixes arrive; return how many began."""
    begun, open_turns = 0, []
    for step in range(per_s * seconds):
        now = step / per_s
        open_turns.append(turns.enter(f"p{step % prefixes}", "b", now))
        while turns.due_s(now) == 0.0:
            turns.begin_next(now)
        for turn in [it for it in open_turns if it.begins]:
            open_turns.remove(turn)
            turns.ended(turn, handshake_s, now)
            begun += 1
    return begun


@pytest.mark.parametrize("handshake_s", [HANDSHAKE_S, 10 * HANDSHAKE_S, HANDSHAKE_S / 10])
@pytest.mark.parametrize("prefixes", [1, 1000])
def test_strangers_take_no_more_than_their_share_of_the_processor(handshake_s, prefixes):
    """However slow the machine is: what a handshake takes is measured."""
    seconds = 200
    begun = flood(Turns(), prefixes, 50, seconds, handshake_s)
    most = (AT_ONCE_S + SHARE * seconds) / (WHOLE * handshake_s)
    assert begun <= most + 1 + 10 * (handshake_s < HANDSHAKE_S)
    assert begun >= 0.7 * min(most, 50 * seconds) - 1


def test_a_connection_begins_at_once_while_nobody_waits():
    turns = Turns()
    assert all(turns.enter("p", "b", 0.0).begins for _ in range(int(AT_ONCE_S / FIRST_S)))
    turns.enter("p", "b", 0.0)
    assert not turns.enter("p", "b", 0.0).begins
    assert turns.due_s(0.0) > 0.0


def full(turns: Turns, prefix: str) -> list:
    """Use up what may be taken at once, and return as many turns of a prefix as there are places."""
    while (turn := turns.enter(prefix, "b", 0.0)).begins:
        pass
    return [turn, *(turns.enter(prefix, "b", 0.0) for _ in range(MAX_WAITING - 1))]


def test_a_newcomer_of_another_prefix_is_next_but_one_in_any_flood():
    turns = Turns()
    flooding = full(turns, "flood")
    honest = turns.enter("honest", "b", 0.0)
    assert not flooding[-1].begins
    assert flooding[-1].decided.is_set(), "the newest of the flood gave up its place"
    for _ in range(2):
        turns.begin_next(turns.due_s(0.0))
    assert honest.begins
    assert flooding[0].begins


def test_a_prefix_that_fills_all_places_loses_its_own_only():
    turns = Turns()
    flooding = full(turns, "flood")
    late = turns.enter("flood", "b", 0.0)
    assert not late.decided.is_set()
    assert [it.decided.is_set() for it in flooding] == [True, *[False] * (MAX_WAITING - 1)], "its own oldest"


def test_who_hung_up_before_its_turn_costs_nothing():
    turns = Turns()
    for _ in range(1000):
        turn = turns.enter("p", "b", 0.0)
        assert turn.begins
        turns.ended(turn, 0.0, 0.0)


WORKED = 3.0


class Processor:
    """Counts seconds of processor time that tests say were taken."""

    def __init__(self) -> None:
        self.taken_s = 0.0

    def __call__(self) -> float:
        return self.taken_s


@virtual
async def test_only_the_steps_of_the_work_itself_are_metered():
    processor, took = Processor(), []

    async def work():
        processor.taken_s += 1.0
        await trio.sleep(1.0)
        processor.taken_s += 2.0
        return "done"

    async def others():
        await trio.sleep(0.5)
        processor.taken_s += 100.0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await metered(work(), processor, took.append) == "done"
    assert took == [WORKED]


@virtual
async def test_work_that_fails_or_is_cancelled_is_metered_as_well():
    processor, took = Processor(), []

    async def work(fails):
        try:
            processor.taken_s += 1.0
            await trio.sleep(10.0)
        finally:
            processor.taken_s += 2.0
            if fails:
                raise ValueError

    with trio.move_on_after(1.0) as scope:
        await metered(work(fails=False), processor, took.append)
    assert scope.cancelled_caught
    with pytest.raises(ValueError, match=r"^$"):
        await metered(work(fails=True), processor, took.append)
    assert took == [WORKED, WORKED]


def at(prefix: str) -> Location:
    return Location(block=f"{prefix}.1", origin=prefix)


class Host:
    """A ration whose handshakes take what strangers are expected to take; the member is expected at one prefix."""

    def __init__(self) -> None:
        self.processor = Processor()
        self.ration = Ration(lambda members, where: "member" in members and where.origin == "home", self.processor)
        self.served: list[str] = []

    async def connect(self, prefix: str, *, gone: bool = False) -> bool:
        """Connect from a prefix; return whether there was a handshake."""

        async def handshake() -> bool:
            self.processor.taken_s += HANDSHAKE_S
            self.served.append(prefix)
            await trio.lowlevel.checkpoint()
            return True

        return await self.ration.admitted(at(prefix), lambda: gone, handshake) is not None

    async def flood(self, per_s: float, *prefixes: str) -> None:
        """Connect from these prefixes in rotation, until cancelled."""
        async with trio.open_nursery() as nursery:
            for number in count():
                nursery.start_soon(self.connect, prefixes[number % len(prefixes)])
                await trio.sleep(1.0 / per_s)


@virtual
async def test_all_begin_at_once_until_the_time_is_bounded():
    host = Host()
    began = trio.current_time()
    for number in range(1000):
        assert await host.connect(f"p{number}")
    assert trio.current_time() == began


async def served_in_flood(floods, where, *members):
    """Return the seconds after which a connection from a location is served while so many prefixes flood a node with these members."""
    host = Host()
    host.ration.bound(lambda: members)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.ration.serve)
        nursery.start_soon(host.flood, 50.0, *(f"flood{number}" for number in range(floods)))
        await trio.sleep(30.0)
        began = trio.current_time()
        assert await host.connect(where)
        nursery.cancel_scope.cancel()
        return trio.current_time() - began


@pytest.mark.parametrize("floods", [1, 8])
@virtual
async def test_an_honest_newcomer_is_served_in_time_in_a_flood_of_strangers(floods):
    """From a prefix of its own, after one connection of each other prefix."""
    assert await served_in_flood(floods, "honest") <= (floods + 2) * FIRST_S / SHARE


@virtual
async def test_an_absent_member_does_not_wait_behind_strangers():
    assert await served_in_flood(MAX_WAITING, "home", "member") == 0.0


@virtual
async def test_whoever_has_no_turn_in_time_or_hung_up_has_no_handshake():
    host = Host()
    host.ration.bound(lambda: ())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.ration.serve)
        assert not await host.connect("gone", gone=True)
        nursery.start_soon(host.flood, 50.0, "flood")
        await trio.sleep(30.0)
        waiting, began = len(host.served), trio.current_time()
        assert not await host.connect("flood"), "one of many of its prefix"
        assert trio.current_time() - began <= WAIT_S
        assert len(host.served) > waiting
        nursery.cancel_scope.cancel()
    assert "gone" not in host.served
