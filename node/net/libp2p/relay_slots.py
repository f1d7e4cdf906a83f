"""Allocation of a relay: reservations, circuits, their bytes and their time. Pure: peers and times in, decisions out.

Theory of operation. A member that nobody can dial *reserves* a place at a relay, and whoever wants to reach it asks the relay for a
*circuit* to it, a stream in each connection of which the relay copies the bytes. The relay sees who talks with whom, when and how much,
and no more: both ends run their handshake and encryption inside.

    reservation   of a member with a connection; ends with that connection, after RESERVATION_S unless it is renewed, or where all are taken
                  and its prefix holds most, for another; who lost it so learns it when it renews
    circuit       to the holder of a reservation, one from each source, which replaces the one before; ends with either stream, after its
                  time, when its bytes are used up, or where all are taken and its source's prefix holds most, for another
    bytes         of a peer and of all are paced: who sends more waits, and loses nothing

Everything has a bound for one peer, circuits one for peers that are no members; of all reservations, of all circuits and of those to one
target each prefix, and each peer of a prefix, has its share (`starling.gossip.shares`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Literal

from starling.gossip.limits import Rates, TokenBucket
from starling.gossip.shares import Shares

RESERVATION_S = 1800.0
STRANGERS_SHARE = 4  # one part in so many circuits is for peers that are no members
ASKS, ASKS_PER_S = 10.0, 0.5  # requests of one peer: burst, and per second
KNOCKS, KNOCKS_PER_S = 16.0, 2.0  # circuits to one target: burst, and per second, so that it does not take us for a flood
MAX_ASKING = 1024
BURST_S = 2.0

Refusal = Literal["refused", "full", "not allowed", "no reservation"]
Mode = Literal["off", "control", "small"]


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of what a relay carries for others."""

    circuit_bytes: int  # both ways together
    circuit_s: float
    peer_bytes_per_s: float  # rate of all circuits of a peer together, as either end
    bytes_per_s: float  # of all
    reservations: int = 32
    circuits: int = 64
    circuits_from: int = 8  # of one source
    circuits_to: int = 8  # of one target


ALLOWANCES: Mapping[Mode, Allowance] = MappingProxyType(
    {"control": Allowance(4 << 20, 1800.0, 32 << 10, 128 << 10), "small": Allowance(64 << 20, 1800.0, 256 << 10, 1 << 20)}
)


@dataclass(slots=True, eq=False)
class Circuit:
    """A circuit between two peers, through this node."""

    number: int
    source: str
    origin: str  # address prefix of the source's connection
    target: str
    member: bool  # whether the source is a member
    ends_at: float
    left: int  # bytes


@dataclass(slots=True)
class RelaySlots:
    """Allocates the slots of one relay; `allowance` None: this node does not relay."""

    allowance: Allowance | None
    _reserved: dict[str, float] = field(default_factory=dict)  # holder -> end
    _circuits: dict[int, Circuit] = field(default_factory=dict)
    _reservations: Shares[str] = field(default_factory=lambda: Shares(1))  # by holder
    _places: Shares[int] = field(default_factory=lambda: Shares(1))  # of circuits
    _places_at: dict[str, Shares[int]] = field(default_factory=dict)  # slots at each target
    _asks: Rates[str] = field(default_factory=lambda: Rates(ASKS_PER_S, ASKS, MAX_ASKING))
    _knocks: dict[str, TokenBucket] = field(default_factory=dict)  # token buckets of peers with a reservation
    _knocks_from: Rates[tuple[str, str]] = field(default_factory=lambda: Rates(KNOCKS_PER_S / 2.0, KNOCKS / 2.0, MAX_ASKING))
    """Token buckets by target and prefix of sources."""
    _paces: dict[str, TokenBucket] = field(default_factory=dict)  # token buckets of the ends of circuits
    _pace: TokenBucket | None = None
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        if self.allowance is not None:
            self._pace = _bucket(self.allowance.bytes_per_s)
            self._places = Shares(self.allowance.circuits)
            self._reservations = Shares(self.allowance.reservations)

    @property
    def circuits(self) -> tuple[Circuit, ...]:
        """Return the open circuits, the oldest first."""
        return tuple(self._circuits.values())

    @property
    def buckets(self) -> int:
        """Return the number of token buckets of peers with a reservation or a circuit."""
        return len(self._knocks) + len(self._paces)

    def holders(self, now: float) -> tuple[str, ...]:
        """Return the peers with a reservation, sorted."""
        self._expire(now)
        return tuple(sorted(self._reserved))

    def reserve(self, peer: str, origin: str, member: bool, now: float) -> float | Refusal:
        """Give or renew a reservation to a peer with a connection from a public prefix, or "" -> when it ends, or why it is refused.

        Another's may end for it.
        """
        if self.allowance is None or not member:
            return "not allowed" if self.allowance is None else "refused"
        if not self._may_ask(peer, now):
            return "full"
        self._expire(now)
        taken, given_up = self._reservations.take(peer, (origin or peer, peer))
        if not taken:
            return "full"
        if given_up is not None:
            self._release(given_up)  # its circuits last
        self._reserved[peer] = now + RESERVATION_S
        return now + RESERVATION_S

    def begin(self, source: str, origin: str, target: str, member: bool, now: float) -> Circuit | Refusal:
        """Return the circuit that a peer at an address prefix requests, or why it is refused.

        One between the two that is open is replaced. Others may end for it, see `is_open`.
        """
        if self.allowance is None:
            return "not allowed"
        if not self._may_ask(source, now):
            return "full"
        self._expire(now)
        if target not in self._reserved or source == target:
            return "no reservation"
        old = next((it for it in self._circuits.values() if (it.source, it.target) == (source, target)), None)
        if old is not None:
            self.end(old)
        places, owner = ((self._places, self._places_at.get(target, Shares(self.allowance.circuits_to))), (origin, source))
        if not self._has_room(self.allowance, source, target, member) or not all(each.is_free(owner) for each in places):
            return "full"
        if not self._may_knock(origin, target, now):
            return "full"
        number = next(self._numbers)
        self._places_at[target] = places[1]
        for each in reversed(places):  # the target's slots first: a circuit evicted there frees another slot, too
            _, given_up = each.take(number, owner)
            if given_up is not None:
                self.end(self._circuits[given_up])
        made = self._circuits[number] = Circuit(
            number, source, origin, target, member, now + self.allowance.circuit_s, self.allowance.circuit_bytes
        )
        for peer in (source, target):
            self._paces.setdefault(peer, _bucket(self.allowance.peer_bytes_per_s))
        return made

    def _has_room(self, most: Allowance, source: str, target: str, member: bool) -> bool:
        every = self._circuits.values()
        there = [it for it in every if it.target == target]
        room = (
            sum(it.source == source for it in every) < most.circuits_from,
            member or sum(not it.member for it in every) < max(1, most.circuits // STRANGERS_SHARE),
            member or sum(not it.member for it in there) < max(1, most.circuits_to // STRANGERS_SHARE),
        )
        return all(room)

    def is_open(self, circuit: Circuit) -> bool:
        """Tell if a circuit was neither ended nor replaced."""
        return circuit.number in self._circuits

    def passed(self, circuit: Circuit, amount: int, now: float) -> float | None:
        """Account for received bytes -> seconds to wait before they are forwarded; None: the circuit is over, and they are dropped."""
        if not self.is_open(circuit) or now >= circuit.ends_at or amount > circuit.left:
            self.end(circuit)
            return None
        circuit.left -= amount
        buckets = [self._paces[peer] for peer in (circuit.source, circuit.target)]
        buckets += [self._pace] if self._pace is not None else []
        return max(each.borrow(amount, now) for each in buckets)

    def end(self, circuit: Circuit) -> None:
        """Release a circuit that is over; a second call does nothing."""
        if self._circuits.pop(circuit.number, None) is None:
            return
        self._places.leave(circuit.number)
        there = self._places_at[circuit.target]
        there.leave(circuit.number)
        if not there:
            del self._places_at[circuit.target]
        ends = {peer for it in self._circuits.values() for peer in (it.source, it.target)}
        for peer in {circuit.source, circuit.target} - ends:
            if peer not in self._reserved:  # the token bucket lasts as long as the reservation
                self._paces.pop(peer, None)

    def lost(self, peer: str) -> None:
        """Release the reservation and the circuits of a peer whose last connection is closed."""
        self._release(peer)
        for it in self.circuits:
            if peer in (it.source, it.target):
                self.end(it)

    def _release(self, peer: str) -> None:
        self._reservations.leave(peer)
        self._reserved.pop(peer, None)
        self._knocks.pop(peer, None)
        if not any(peer in (it.source, it.target) for it in self._circuits.values()):
            self._paces.pop(peer, None)

    def _expire(self, now: float) -> None:
        for peer in [each for each, ends_at in self._reserved.items() if ends_at <= now]:
            self._release(peer)
        for it in self.circuits:
            if it.ends_at <= now:
                self.end(it)

    def _may_ask(self, peer: str, now: float) -> bool:
        return self._asks.take(peer, now)

    def _may_knock(self, origin: str, target: str, now: float) -> bool:
        """Return whether a target may be asked once more; peers of one prefix get at most half of its requests."""
        share = self._knocks_from.take((target, origin), now)
        return share and self._knocks.setdefault(target, TokenBucket(KNOCKS_PER_S, KNOCKS)).take(1, now)


def _bucket(bytes_per_s: float) -> TokenBucket:
    return TokenBucket(bytes_per_s, BURST_S * bytes_per_s)
