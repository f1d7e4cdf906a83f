"""Processor time of inbound connections while a node trains: the handshakes of strangers wait in turn within a small share of one core.

A handshake and what follows it cost milliseconds, and a key costs nothing, so the cost of strangers is bounded as a whole and not for each.
A connection from the address of a member that is not connected is no stranger's, and has a share of its own.

    enter ── waits: prefixes in turn, the oldest of a prefix first ── begins when the share allows it ── ended: what it took is charged
"""

import types
from collections.abc import Awaitable, Callable, Collection, Generator
from dataclasses import dataclass, field
from time import thread_time
from typing import Any, TypeVar

import trio

from starling.gossip.limits import TokenBucket
from starling.gossip.shares import Shares
from starling.node.net.libp2p.location import Location

SHARE, AT_ONCE_S = 0.005, 0.05  # of one core, for strangers, and seconds that they may take at once
MEMBERS_SHARE, MEMBERS_AT_ONCE_S = 0.05, 0.5  # the same for addresses of members that are not connected
MAX_WAITING = 64
WAIT_S = 10.0  # as long as whoever dials waits for an answer
FIRST_S = 0.005  # processor time of a connection before any was measured
WHOLE = 2.5  # processor time of a short connection, in handshakes: its streams, its frames and its end cost as much again and more
LEAST_S = 1e-3  # the shortest wait: a clock cannot tell less
RECENT = 0.1  # weight of the last connection in the time that one is expected to take

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Turn:
    """A connection that waits to begin its handshake."""

    decided: trio.Event = field(default_factory=trio.Event)
    begins: bool = False
    charged_s: float = 0.0


@dataclass(slots=True)
class Turns:
    """Connections that wait to begin within one share of processor time. Without I/O."""

    share: float = SHARE
    at_once_s: float = AT_ONCE_S
    _budget: TokenBucket = field(init=False)
    _places: Shares[Turn] = field(default_factory=lambda: Shares(MAX_WAITING))
    _prefixes: dict[str, dict[Turn, None]] = field(default_factory=dict)  # waiting, by prefix; the next prefix and the oldest turn first
    _usual_s: float = FIRST_S

    def __post_init__(self) -> None:
        self._budget = TokenBucket(self.share, self.at_once_s)

    def enter(self, prefix: str, block: str, now: float) -> Turn:
        """Return the turn of a connection: decided if it begins at once, or if all places are taken and it may have none.

        Of full places the newest of the prefix with most is freed, and does not begin.
        """
        turn = Turn()
        if not self._prefixes and self._budget.take(0.0, now):
            self._begin(turn, now)
            return turn
        given, freed = self._places.take(turn, (prefix, block))
        if freed is not None:
            self.leave(freed)
        if given:
            self._prefixes.setdefault(prefix, {})[turn] = None
        else:
            turn.decided.set()
        return turn

    def leave(self, turn: Turn) -> None:
        """End the wait of a connection, which does not begin."""
        self._places.leave(turn)
        for prefix, turns in self._prefixes.items():
            if turn in turns:
                del turns[turn]
                if not turns:
                    del self._prefixes[prefix]
                break
        turn.decided.set()

    def due_s(self, now: float) -> float | None:
        """Return the seconds until the next connection may begin; None: none waits."""
        return self._budget.borrow(0.0, now) if self._prefixes else None

    def begin_next(self, now: float) -> None:
        """Begin the oldest connection of the next prefix."""
        prefix, turns = next(iter(self._prefixes.items()))
        turn = next(iter(turns))
        self._begin(turn, now)
        self.leave(turn)
        if turns:
            self._prefixes[prefix] = self._prefixes.pop(prefix)

    def ended(self, turn: Turn, handshake_s: float, now: float) -> None:
        """Charge a connection for the processor time of its handshake, instead of what one was expected to take; 0: there was none."""
        took_s = WHOLE * handshake_s
        if took_s:
            self._usual_s += RECENT * (took_s - self._usual_s)
        if took_s > turn.charged_s:
            self._budget.borrow(took_s - turn.charged_s, now)
        else:
            self._budget.give_back(turn.charged_s - took_s)

    def _begin(self, turn: Turn, now: float) -> None:
        turn.begins, turn.charged_s = True, self._usual_s
        self._budget.borrow(turn.charged_s, now)
        turn.decided.set()


class Ration:
    """Lets inbound connections begin their handshakes: any at once until `bound`, then strangers and members in turn.

    Args:
        belongs: whether one of these members is absent, and expected from a location.
        processor_s: returns the processor time that this thread has taken, in seconds.
    """

    def __init__(self, belongs: Callable[[Collection[str], Location], bool], processor_s: Callable[[], float] = thread_time) -> None:
        self._belongs, self._processor_s = belongs, processor_s
        self._members: Callable[[], Collection[str]] | None = None
        self._strangers_turns, self._members_turns = Turns(), Turns(MEMBERS_SHARE, MEMBERS_AT_ONCE_S)
        self._entered = trio.lowlevel.ParkingLot()

    def bound(self, members: Callable[[], Collection[str]]) -> None:
        """Bound the processor time of connections from now on, apart by whether one of these members is expected."""
        self._members = members

    def is_stranger(self, peer: str) -> bool:
        """Return whether time is bounded, and a peer is none of the members."""
        return self._members is not None and peer not in self._members()

    async def serve(self) -> None:
        """Begin connections that wait, until cancelled."""
        async with trio.open_nursery() as nursery:
            for turns in (self._strangers_turns, self._members_turns):
                nursery.start_soon(self._serve, turns)

    async def admitted(self, where: Location, has_gone: Callable[[], bool], handshake: Callable[[], Awaitable[T]]) -> T | None:
        """Run a handshake in its turn; None: it had none in time, or the other end `has_gone`."""
        if self._members is None:
            return await handshake()
        turns = self._members_turns if self._belongs(self._members(), where) else self._strangers_turns
        turn = turns.enter(where.origin or where.block, where.block, trio.current_time())
        self._entered.unpark_all()
        try:
            with trio.move_on_after(WAIT_S):
                await turn.decided.wait()
        finally:
            if not turn.decided.is_set():
                turns.leave(turn)
        if not turn.begins:
            return None
        if has_gone():
            turns.ended(turn, 0.0, trio.current_time())
            return None
        return await metered(handshake(), self._processor_s, lambda took_s: turns.ended(turn, took_s, trio.current_time()))

    async def _serve(self, turns: Turns) -> None:
        while True:
            due_s = turns.due_s(trio.current_time())
            if due_s is None:
                await self._entered.park()
            elif due_s > LEAST_S:
                await trio.sleep(due_s)
            else:
                turns.begin_next(trio.current_time())


@types.coroutine
def metered(work: Awaitable[T], processor_s: Callable[[], float], took: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Await `work`; report the processor time of its steps, in seconds, once it has ended in any way."""
    steps, total_s = work.__await__(), 0.0
    answer, error = None, None
    try:
        while True:
            began = processor_s()
            try:
                asked = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                total_s += processor_s() - began
            answer, error = None, None
            try:
                answer = yield asked
            except BaseException as thrown:  # noqa: BLE001 - it is thrown into `work`
                error = thrown
    finally:
        took(total_s)
