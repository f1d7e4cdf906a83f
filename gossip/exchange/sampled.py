"""Sampled rounds: in each, a few members train and a few average, while all others sleep. No clock: time is the argument `now`.

A run is a chain of turns, each done by the first members of a hash order of all that are alive in a node's view; nobody is asked who does
what. With aggregators, turn 2k trains in round k and turn 2k + 1 averages what came out; without, every turn trains on the average of the
turn before. Who did a turn signs its vector (`starling.gossip.exchange.attestation`), and hands over:

    published turn t ──Wake(yours)──▶ the first of order t + 1: pull vectors of turn t, do turn t + 1, publish
                     ──Wake──────────▶ those whose vectors of turn t − 1 it used: their hand-over has succeeded

Silent or slow    Who has published goes on waking the next of the order until enough of those woken have published in turn, each time after
                  the time that answers take. Should all of these be gone soon after, it wakes others again.
Passed on         Where one member averages, nobody else wakes the next: it tells those whose vectors it used as soon as one of the next has
                  published. If it has not when it usually has, they wake the next themselves, once.
Enough            An averaging turn begins with the share `success` of the sample and waits a while for the rest of it; a training turn
                  begins with one aggregate, with most where a rule can combine them, or without aggregators with that share as well.
Whose turn it is  Of those who published a turn the first of its order are taken. Who is not to be woken for it counts only where too few
                  of the others publish in twice the usual time: a member gets no turn more often by claiming more of them.
In vain           Whoever published nothing while the rest was waited for, in more than one of nine turns, is not waited for any more.
Not delivered     A member whose signed vector does not come is demoted: for DEMOTED turns, twice as many each time, it is last in this
                  node's order, until it delivers. If nothing of an averaging turn can be fetched, whoever was to go on from it does it.
                  Who says at once that it no longer has it keeps its place: it is this node that is late then.
Believing         A turn counts as published when two members have signed for it, or for the turn before it: one member can make no other
                  jump ahead. Only the next turn after the highest such is done. Who wakes others for a turn that is over is told so.
First turn        Begun unasked: by the first of its order at once, by those after them as long as nothing is heard, one wait after another.
Last              All members are woken for the turn after the last one, in which they take the last model and publish nothing.

Differences from the source: those who are needed are woken and pull, instead of being pinged and pushed to; who is alive is what the
failure detector says; the hand-over is watched. Views may differ: the sample only has to be a sample.

Source: de Vos, Dhasade, Kermarrec et al. 2023, MoDeST (arXiv:2302.13837).
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import Verify, genuine, statement_of
from starling.gossip.exchange.commands import SendMessage
from starling.gossip.exchange.doubts import Demotions, Doubts
from starling.gossip.robust_deadline import late_after
from starling.gossip.wire.schema import MAX_WITNESSES, Claim, Wake

VOICES = 2  # signers of a step, or of the one before it, that make it believed
ANSWERS = 32  # answer times remembered for each kind of step
ENOUGH = 5  # fewest answer times for an estimate
SPREADS, SLACK = (4.0, 0.25)  # an answer is late after the median and so many spreads, each at least this share of the median
STRETCH = 16.0  # longest wait for an answer, as a multiple of `max_wait_s`
GUARD = 4.0
"""In `max_wait_s`: how long a hand-over that has succeeded is watched for the end of those who took it, how long nothing is heard until
others are asked how far they are, how long the rest of a sample and the last model are waited for at most."""
STUCK, SLOWER = 3.0, 8.0  # without a new step for so many GUARD and so many usual step times, the run counts as stuck
ASKED = 3  # members asked at a time for their progress
FRESHEST = 64  # steps by which holders of fresh models are preferred to holders of old ones


@dataclass(frozen=True, slots=True)
class Sampling:
    """Rules that say who takes part in a step of sampled rounds, and when the next may begin. Raises ValueError: names the key and its
    bound.

    Args:
        sample: members that train in a round, >= 2.
        aggregators: members that average in a round, >= 0; 0: the next sample does.
        success: share of the sample whose models are enough, in (0.5, 1].
        slack: members woken beyond the sample.
        rounds: 0 is endless.
        aggregates: of an averaging turn that the next turn combines, >= 1; with more than two a rule bounds what one liar among the
            aggregators does.
    """

    sample: int
    aggregators: int
    success: float
    slack: int
    rounds: int = 0
    aggregates: int = 1

    def __post_init__(self) -> None:
        if self.sample < 2:
            raise ValueError(f"sample must be >= 2, got {self.sample}")
        if not 0.5 < self.success <= 1.0:
            raise ValueError(f"success must be in (0.5, 1], got {self.success:g}")

    @property
    def stride(self) -> int:
        """Return the number of steps (local steps or averagings) of a round."""
        return 2 if self.aggregators else 1

    @property
    def turns(self) -> float:
        """Return the number of steps of the run; all members take part in the one after the last."""
        return self.stride * self.rounds or math.inf

    def trains(self, turn: int) -> bool:
        """Tell if members do local steps in step `turn`, or average."""
        return turn % self.stride == 0

    def round(self, turn: int) -> int:
        """Return the round that step `turn` belongs to."""
        return turn // self.stride

    def size(self, turn: int) -> int:
        """Return the number of members that take part in step `turn`."""
        return self.sample if self.trains(turn) else self.aggregators

    def needed(self, turn: int) -> int:
        """Return how many vectors of step `turn` the next step needs to begin."""
        return math.ceil(self.success * self.sample - 1e-9) if self.trains(turn) else self.aggregates // 2 + 1

    def taken(self, turn: int) -> int:
        """Return how many vectors of step `turn` the next step combines at most."""
        return self.sample if self.trains(turn) else self.aggregates

    def lone(self, turn: int) -> bool:
        """Tell if a step counts as done, and as handed over, by the word of one member."""
        return self.accepted(turn) < VOICES

    def accepted(self, turn: int) -> int:
        """Return how many members that did step `turn` must have handed over before it counts as handed over."""
        return self.needed(turn) if self.trains(turn) else self.aggregators // 2 + 1


@dataclass(frozen=True, slots=True)
class Due:
    """A step that this node must do now, and the members that published the step before, best first; none: it begins with the initial
    model.
    """

    turn: int
    sources: tuple[str, ...]
    last: bool = False  # whether to take the final model and publish nothing
    again: bool = False  # whether to publish our own model unchanged


@dataclass(slots=True)
class _Handover:
    turn: int  # step that was published and handed over to the next
    until: float  # time at which a hand-over that succeeded is no longer watched
    at: float = -math.inf  # time at which to wake more members
    woken: dict[str, float] = field(default_factory=dict)  # peer -> when
    answered: set[str] = field(default_factory=set)
    succeeded: bool = False


@dataclass(frozen=True, slots=True)
class _Expected:
    """What follows a step that one member did for us, and that only this member can hand over."""

    turn: int  # the next step, of which nobody is known to have published it
    wake: Wake  # what wakes its members: the signatures of that member, and of ours for the step before
    since: float
    at: float  # time at which we wake its members; infinite if we have


@dataclass(slots=True)
class Sampled:
    """State machine of one node in sampled rounds."""

    me: str
    swarm: str  # swarm id
    sampling: Sampling
    order: Callable[[int], Sequence[str]]  # returns the alive members, this node included, in the order of a step
    verify: Verify  # verifies a peer's signature
    is_member: Callable[[str], bool]  # returns whether a peer is a known member, alive or not; only those may sign
    min_wait_s: float  # shortest wait for the rest of a sample, and for an answer
    max_wait_s: float  # longest wait for the rest of a sample, and for an answer until answer times are known
    resting: bool = False  # whether the owner wants no training: this node only takes the final model
    known: int = -1  # highest step that is believed to be published
    ours: int = -1  # highest step that this node has taken on
    _began: float = math.inf
    _heard_s: float = math.inf  # time of the last message
    _grown_s: float = math.inf  # time at which the last new step was heard of
    _turn_s: float = 0.0  # recent duration of a step, in seconds
    _last_s: float = math.inf  # time until which the final model is waited for
    _asked: int = 0  # number of times others were asked since the last message
    _told: dict[str, Wake] = field(default_factory=dict)  # latest Wake of each peer
    _first: tuple[int, float] = (-1, math.inf)  # the latest step after which we were woken, and the time of the first such message
    _ready_s: float = math.inf  # time at which enough members had published it
    _useless: set[tuple[int, str]] = field(default_factory=set)  # (step, member) whose vector could not be fetched
    _demoted: Demotions = field(default_factory=Demotions)  # members that did not deliver what they signed
    _in_vain: Doubts = field(default_factory=Doubts)  # members that often published nothing while this node waited for them
    _evidence: Wake | None = None  # a message that proves that `known` was published
    _over: _Handover | None = None
    _expected: _Expected | None = None
    _waiting: tuple[int, tuple[str, ...]] = (-1, ())  # a step done alone, and whose vectors went into it: they wait to hear of the next
    _went_on: deque[float] = field(default_factory=lambda: deque(maxlen=ANSWERS))  # times in which what was expected came
    _took: dict[bool, deque[float]] = field(default_factory=lambda: {kind: deque(maxlen=ANSWERS) for kind in (True, False)})
    _done: bool = False

    def begin(self, now: float) -> list[SendMessage]:
        """Take part from now on -> requests to others whether steps are under way."""
        self._began = now
        return self._ask(now)

    @property
    def tick_at(self) -> float:
        """Return the time of the next `tick`; infinite if there is none."""
        asks = math.inf if self._done else self._heard_s + GUARD * self.max_wait_s
        over, expects = self._over, math.inf if self._expected is None else self._expected.at
        return min(asks, expects, math.inf if over is None or self._content(over) else over.at)

    @property
    def due_at(self) -> float:
        """Return the time of the next `due` without a message; infinite if there is none."""
        if self._done:
            return math.inf
        if self.known >= self.sampling.turns - 1:
            return self._last_s
        moments = [self._stuck_at]
        if self.known < 0 and self.ours < 0 and not self.resting:
            moments.append(self._alone_at)
        if self._first[0] >= max(0, self.ours, self.known - 1) and not self.resting:
            moments.append(self._ready_s + self._grace_s)
            if self._sources(self._first[0], in_turn=False) or self._redone(self._first[0], math.inf) is not None:
                moments.append(self._out_of_turn_at)
        return min(moments)

    def due(self, now: float) -> Due | None:
        """Return what this node must do now, if anything."""
        sampling = self.sampling
        if self._done or now < self._began:
            return None
        self._poll(now)
        if self.known >= sampling.turns - 1:
            sources = self._sources(self.known, in_turn=now < self._last_s)
            there = len(sources) >= min(sampling.needed(self.known), VOICES) or now >= self._last_s
            return Due(self.known + 1, sources, last=True) if there else None
        if self.known < 0 and self.ours < 0 and now >= self._alone_at and not self.resting:
            return Due(0, ())
        if now >= self._stuck_at:
            following = max(self.known, self.ours) + 1
            return Due(following + (sampling.aggregators > 0 and sampling.trains(following)), (), again=True)
        turn, _ = self._first
        if turn < max(0, self.ours, self.known - 1) or self.resting:
            return None
        sources = self._sources(turn)
        if now >= self._out_of_turn_at and (late := self._sources(turn, in_turn=False)):
            return Due(turn + 1, late)
        if len(sources) < sampling.needed(turn):
            return self._redone(turn, now)
        if len(sources) >= sampling.taken(turn) or now >= self._ready_s + self._grace_s or not self._awaited(turn):
            return Due(turn + 1, sources)
        return None

    def _awaited(self, turn: int) -> list[str]:
        """Return the members whose turn it was, that have not published it, and that are not waited for in vain."""
        return [peer for peer in self._missing(turn) if peer not in self._in_vain]

    def _missing(self, turn: int) -> set[str]:
        """Return the members whose turn it was and that have not published it."""
        return set(self._preferred(turn)[: self.sampling.size(turn)]) - self._claims(turn).keys()

    def _redone(self, turn: int, now: float) -> Due | None:
        """Return averaging turn `turn`, if nothing of it can be fetched, for this node to do from the vectors of the turn before.

        Too few of these are enough after the time for which others are waited for.
        """
        useless = {peer for at, peer in self._useless if at == turn}
        if self.sampling.trains(turn) or not useless or self._claims(turn).keys() - useless or turn < self.ours:
            return None
        before = self._sources(turn - 1, in_turn=False)
        enough = 1 if now >= self._out_of_turn_at else self.sampling.needed(turn - 1)
        return Due(turn, before) if len(before) >= enough else None

    def take_on(self, due: Due, now: float) -> None:
        """Start step `due` at this node, at time `now`."""
        if due.sources and not due.last:
            self._judge(due)
        self._grown_s = now
        self.ours = max(self.ours, due.turn)

    def _judge(self, due: Due) -> None:
        """Note who was in time for a step that begins, and who was waited for in vain."""
        turn, sampling = due.turn - 1, self.sampling
        missing = self._missing(turn)
        for peer in self._preferred(turn)[: sampling.size(turn)]:
            if peer not in missing:
                self._in_vain.in_time(peer)
            elif len(due.sources) < sampling.taken(turn) and peer not in self._in_vain:
                self._in_vain.late(peer)

    def give_up(self, due: Due, useless: Iterable[str], now: float) -> None:
        """Put off a step that cannot be done because the vectors of the `useless` peers are unavailable; it is due again when others have
        one.
        """
        for peer in useless:
            self._useless.add((due.turn - 1, peer))
        if not due.last:
            self.ours = due.turn - 1
        self._poll(now)

    def delivered(self, peers: Iterable[str]) -> None:
        """Note that these peers sent the vectors that they had signed."""
        for peer in peers:
            self._demoted.delivered(peer, self.ours)

    def withheld(self, peers: Iterable[str]) -> None:
        """Note that these peers did not send the vectors that they had signed, and did not refuse at once."""
        for peer in peers:
            self._demoted.failed(peer, self.ours)

    def publish(self, claim: Claim, used: Sequence[str], now: float) -> list[SendMessage]:
        """Announce that this node published the vector of `claim`, made from those of the members `used` -> messages to the members
        concerned.
        """
        turn, sampling = claim.round, self.sampling
        assert turn >= self.ours, "turns are done in order"
        before = {it.peer: it for wake in self._told.values() for it in wake.claims if it.round == turn - 1}
        witnesses = [before[peer] for peer in used if peer in before and peer != self.me]
        wake = Wake(turn, yours=False, claims=(claim, *witnesses[: MAX_WITNESSES - 1]))
        self.ours, self._told[self.me] = turn, wake
        self._over, self._expected = _Handover(turn, now + GUARD * self.max_wait_s), None
        if sampling.lone(turn):
            self._waiting = turn, tuple(used)
        # all members must learn that the run has begun, or continues
        told = set(used) if used and turn != sampling.stride - 1 else set(self.order(turn))
        self._grown_s = now
        self._believe(now)
        return [*(SendMessage(peer, wake) for peer in sorted(told - {self.me})), *self._wake(self._over, now)]

    def finish(self, used: Iterable[str]) -> list[SendMessage]:
        """Note that this node has the final model, from the members `used` -> messages to others."""
        self._done = True
        return [SendMessage(peer, self._evidence) for peer in used if peer != self.me and self._evidence is not None]

    def tick(self, now: float) -> list[SendMessage]:
        """Wake more members if too few have answered."""
        requested = self._ask(now) if now >= self._heard_s + GUARD * self.max_wait_s and not self._done else []
        over, expected = self._over, self._expected
        if expected is not None and now >= expected.at:
            requested += self._wake_expected(expected, now)
        if over is None:
            return requested
        if self.known > over.turn + 1 or (over.succeeded and now > over.until):
            self._over = None
            return requested
        return requested + (self._wake(over, now) if not self._content(over) and now >= over.at else [])

    def receive(self, peer: str, wake: Wake, now: float) -> tuple[list[SendMessage], tuple[Claim, ...]]:
        """Process a message of a peer -> answers, and the members' claims in it that are signed by their authors.

        Claims of a turn that is over are not verified, and none of them is returned.

        Raises RemoteProtocolError: wrong_round, wrong_claim, bad_signature.
        """
        if wake.turn >= self.sampling.turns:
            raise RemoteProtocolError(peer, "wrong_round")
        self._heard_s, self._asked = now, 0
        answer = [] if self._evidence is None else [SendMessage(peer, self._evidence)]
        if not wake.claims or wake.turn < self.known - 1:
            return answer, ()
        wake, earlier = self._checked(peer, wake), self._told.get(peer)
        if earlier is not None and earlier.turn > wake.turn:
            return [], wake.claims
        yours = wake.yours or (earlier is not None and earlier.turn == wake.turn and earlier.yours)
        self._told[peer] = structs.replace(wake, yours=yours)
        if self._over is not None and self._accepts(self._over, peer, wake):
            self._answered(self._over, peer, now)
        self._believe(now)
        return [*(answer if wake.yours and (self.known > wake.turn + 1 or self._done) else []), *self._passed_on(wake)], wake.claims

    def lost(self) -> None:
        """Note that this node no longer has the vector that it published last."""
        self._useless.add((self.ours, self.me))

    def forget(self, peer: str) -> None:
        """Delete a peer that is gone from those woken; its signed claims remain."""
        self._in_vain.forget(peer)
        if self._over is not None:
            self._over.answered.discard(peer)
            self._over.woken.pop(peer, None)

    def _ask(self, now: float) -> list[SendMessage]:
        """Ask some others for their progress, different ones each time."""
        others = [peer for peer in self.order(self._asked) if peer != self.me]
        self._heard_s, self._asked = now, self._asked + 1
        return [SendMessage(peer, Wake(0, yours=False, claims=())) for peer in others[:ASKED]]

    def _checked(self, peer: str, wake: Wake) -> Wake:
        """Return the message with only the claims of members."""
        earlier = self._told.get(peer)
        if earlier is not None and wake.claims == earlier.claims and wake.turn == earlier.turn:
            return wake
        if len({it.peer for it in wake.claims}) < len(wake.claims):
            raise RemoteProtocolError(peer, "wrong_claim")
        for it in wake.claims:
            if it.round not in (wake.turn, wake.turn - 1):
                raise RemoteProtocolError(peer, "wrong_claim")
            if not genuine(statement_of(it, self.swarm), self.verify):
                raise RemoteProtocolError(peer, "bad_signature")
        return structs.replace(wake, claims=tuple(it for it in wake.claims if self.is_member(it.peer)))

    def _accepts(self, over: _Handover, peer: str, wake: Wake) -> bool:
        """Return whether a Wake shows that the peer received the hand-over: it knows the last step done, or did the next itself."""
        if wake.turn == over.turn:
            return over.turn == self.sampling.turns - 1 and not wake.yours
        return wake.turn == over.turn + 1 and any(it.peer == peer and it.round == wake.turn for it in wake.claims)

    def _answered(self, over: _Handover, peer: str, now: float) -> None:
        if peer in over.woken and peer not in over.answered:
            self._took[self.sampling.trains(over.turn + 1)].append(now - over.woken[peer])
        before = self._content(over)
        over.answered.add(peer)
        if self._content(over) and not before:
            over.succeeded = True
            if self.sampling.lone(over.turn + 1) and over.turn + 2 < self.sampling.turns:
                claims = {self.me: self._claims(over.turn)[self.me]} | self._claims(over.turn + 1)
                wake = Wake(over.turn + 1, yours=True, claims=tuple(claims.values())[:MAX_WITNESSES])
                self._expected = _Expected(over.turn + 2, wake, now, now + self._late_s(self._went_on))

    def _content(self, over: _Handover) -> bool:
        """Return whether nobody has to be woken for now."""
        if over.turn == self.sampling.turns - 1:
            return not set(self.order(over.turn + 1)) - over.answered - {self.me}
        return len(over.answered) >= self.sampling.accepted(over.turn + 1)

    def _wake(self, over: _Handover, now: float) -> list[SendMessage]:
        """Wake the first members of the next step's order, or as many more as have not answered."""
        sampling, following, mine = self.sampling, over.turn + 1, self._told[self.me]
        order = self._preferred(following)
        count = max(1, sampling.size(following) - len(over.answered))
        if over.turn == sampling.turns - 1:
            over.woken, count = {}, len(order)
        elif not over.woken and sampling.trains(following):
            count += sampling.slack
        fresh = [peer for peer in order if peer not in over.woken]
        if len(fresh) < count:  # all members were woken: start over
            fresh += [peer for peer in order if peer not in fresh]
        chosen = [peer for peer in fresh if peer not in over.answered][:count]
        over.at = now + self._timeout_s(following)
        over.woken |= dict.fromkeys(chosen, now)
        if self.me in chosen:
            self._told[self.me] = structs.replace(mine, yours=True)
            self._poll(now)
        message = structs.replace(mine, yours=True)
        return [SendMessage(peer, message) for peer in chosen if peer != self.me]

    def _passed_on(self, wake: Wake) -> list[SendMessage]:
        """Tell those that wait for it, once, that a step after the one that this node did alone was published."""
        turn, waiting = self._waiting
        if wake.turn <= turn or len(wake.claims) < VOICES:
            return []
        self._waiting = turn, ()
        authors = {self.me, *(it.peer for it in wake.claims)}
        return [SendMessage(peer, structs.replace(wake, yours=False)) for peer in waiting if peer not in authors]

    def _wake_expected(self, expected: _Expected, now: float) -> list[SendMessage]:
        """Wake the members of a step that nobody else seems to have woken."""
        self._expected = replace(expected, at=math.inf)
        chosen = self._preferred(expected.turn)[: self.sampling.size(expected.turn) + self.sampling.slack]
        if self.me in chosen:
            self._told[self.me] = expected.wake
            self._poll(now)
        return [SendMessage(peer, expected.wake) for peer in chosen if peer != self.me]

    def _timeout_s(self, turn: int) -> float:
        """Return the seconds that woken members have before others are woken."""
        return self._late_s(self._took[self.sampling.trains(turn)])

    def _late_s(self, took: Sequence[float]) -> float:
        """Return the seconds after which what took so long before is late."""
        if len(took) < ENOUGH:
            return max([self.max_wait_s, *took])
        return min(max(late_after(took, SPREADS, SLACK), self.min_wait_s), STRETCH * self.max_wait_s)

    def _believe(self, now: float) -> None:
        """Raise `known` to the highest step that is believed, and delete records of old ones."""
        for turn in sorted({wake.turn for wake in self._told.values()}, reverse=True):
            if turn > self.known and self._believed(turn):
                if self.known >= 0:
                    took_s = (now - self._grown_s) / (turn - self.known)
                    self._turn_s = took_s if not self._turn_s else (self._turn_s + took_s) / 2.0
                self.known, self._grown_s = turn, now
                if (expected := self._expected) is not None and turn >= expected.turn:
                    self._expected = None
                    if turn == expected.turn:
                        self._went_on.append(now - expected.since)
                claims = {**self._claims(turn), **{p: it for p, it in self._claims(turn - 1).items() if p not in self._claims(turn)}}
                self._evidence = Wake(turn, yours=False, claims=tuple(claims.values())[:MAX_WITNESSES])
                if turn >= self.sampling.turns - 1:
                    self._last_s = now + GUARD * self.max_wait_s
                self._told = {peer: wake for peer, wake in self._told.items() if wake.turn >= turn - 1 or peer == self.me}
                self._useless = {each for each in self._useless if each[0] >= turn - 1}
                break
        self._poll(now)

    def _poll(self, now: float) -> None:
        """Update after which step this node was woken, and since when enough members have published it."""
        turns = {wake.turn for wake in self._told.values() if wake.yours and wake.turn >= self.ours}
        turn = max((turn for turn in turns if self._believed(turn)), default=-1)
        if turn != self._first[0]:
            self._first, self._ready_s = (turn, now), math.inf
        if turn >= 0:
            ready = len(self._sources(turn)) >= self.sampling.needed(turn)
            self._ready_s = min(self._ready_s, now) if ready else math.inf

    @property
    def _grace_s(self) -> float:
        """Return the seconds to wait for the rest of a sample: as long as the part that suffices took."""
        return min(max(self._ready_s - self._first[1], self.min_wait_s), self.max_wait_s)

    @property
    def _out_of_turn_at(self) -> float:
        """Return when vectors of members count whose turn it was not: those whose turn it was had twice the time that they usually take."""
        return self._first[1] + min(2.0 * self._timeout_s(self._first[0]), GUARD * self.max_wait_s)

    @property
    def _stuck_at(self) -> float:
        """Return the time at which the run counts as stuck if no message comes; earlier if our own model is newer."""
        if self.resting or self.known < 0 or self.known >= self.sampling.turns - 1:
            return math.inf
        after_s = max(STUCK * GUARD * self.max_wait_s, SLOWER * self._turn_s)
        return self._grown_s + after_s + min(max(0, self.known - self.ours), FRESHEST) * self.min_wait_s

    @property
    def _alone_at(self) -> float:
        """Return the time at which this node begins the first step without a request."""
        order = list(self.order(0))
        place = order.index(self.me) // self.sampling.sample if self.me in order else math.inf
        return self._began + self.min_wait_s + place * self.max_wait_s

    def _preferred(self, turn: int) -> list[str]:
        """Return the order of a turn, with demoted members last."""
        return sorted(self.order(turn), key=lambda peer: self._demoted.active(peer, turn))

    def _claims(self, turn: int) -> dict[str, Claim]:
        """Return what members have signed for a step."""
        return {it.peer: it for wake in self._told.values() for it in wake.claims if it.round == turn}

    def _believed(self, turn: int) -> bool:
        """Return whether we have published this step, or enough members have signed that they did."""
        claims = self._claims(turn)
        return self.me in claims or len(claims.keys() | self._claims(turn - 1).keys()) >= VOICES

    def _sources(self, turn: int, *, in_turn: bool = True) -> tuple[str, ...]:
        """Return the alive members that published a step: this node, those that woke us, all others, each in the step's order.

        At most as many as are combined come first of the order, whoever woke us; `in_turn`: none but those who are woken for the turn.
        """
        woke, size = {peer for peer, wake in self._told.items() if wake.yours}, self.sampling.size(turn)
        order = [peer for peer in self._preferred(turn) if (turn, peer) not in self._useless]
        claims, window = self._claims(turn), size + self.sampling.slack if in_turn else len(order)
        found = [peer for peer in order[:window] if peer in claims]
        if self.me in claims and self.me in order[window:]:
            found.append(self.me)
        first = found[:size]
        return tuple(sorted(found, key=lambda peer: (peer != self.me, peer not in first, peer not in woke)))
