"""The stage of each member and crew, from the claims in members' signed records; pure.

A seat is a number: 0 for none, else 1 + crew · N + stage. Of several who claim one the smallest peer id has it, and the others look for the
next. Who waits in a crew that is not whole moves to the one that lacks its stage and else the fewest, so broken crews become whole.

Shapes: N stages.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

MAX_ASSIGNMENT = 1 << 20
APART = 1000
"""Crews from this number on are of stages that left a mute one and took their states along: of two that lack as many, whoever waits in the
other one has less to lose, and comes."""


def seat(crew: int, stage: int, stages: int) -> int:
    """The number of a seat."""
    return 1 + crew * stages + stage


def place(number: int, stages: int) -> tuple[int, int]:
    """Return (crew, stage) of a seat, > 0."""
    return divmod(number - 1, stages)


def holders(claims: Mapping[str, int]) -> dict[int, str]:
    """Return seat -> member, from member -> claimed seat."""
    return {number: peer for peer, number in sorted(claims.items(), reverse=True) if 0 < number <= MAX_ASSIGNMENT}


def whole(claims: Mapping[str, int], stages: int) -> dict[int, tuple[str, ...]]:
    """Return crew -> its peers in the order of stages, for all complete crews, the lowest first."""
    held = holders(claims)
    crews = sorted({place(number, stages)[0] for number in held})
    found = {crew: tuple(held.get(seat(crew, stage, stages), "") for stage in range(stages)) for crew in crews}
    return {crew: peers for crew, peers in found.items() if all(peers)}


def away(claims: Mapping[str, int], stages: int, me: str, crew: int, peers: Sequence[str]) -> tuple[str, ...]:
    """Return those of a crew's peers, in the order of stages, that have no longer its seat; nobody if `me` has not either."""
    held = holders(claims)
    gone = tuple(peer for stage, peer in enumerate(peers) if held.get(seat(crew, stage, stages)) != peer)
    return () if me in gone else gone


def chosen(
    claims: Mapping[str, int], stages: int, me: str, stage: int, avoided: Collection[str] = (), together: Collection[str] = ()
) -> int:
    """Return the seat that a node is to claim, given all claims including its own.

    That is the one it has in a whole crew, else the first free one (`_ranked`), but none in a crew in which one that is `avoided` sits.
    Who avoids somebody stays with those with whom it goes on, `together`: it sits where most of them do, else in a crew of its own, whose
    number is `APART` or more.
    """
    held, own = holders(claims), claims.get(me, 0)
    crews = _crews(held, stages)
    closed = {crew for crew, peers in crews.items() if not set(peers.values()).isdisjoint(avoided)}
    at = place(own, stages)[0] if own and held.get(own) == me else -1
    if at >= 0 and at not in closed and len(crews[at]) == stages:
        return own
    free = [crew for crew in _ranked(crews) if crew not in closed and crews[crew].get(stage, me) == me]
    if avoided:
        free = _friendly(free, crews, {me, *together})
    empty = next(crew for crew in count(APART if avoided else 0) if crew not in crews)
    return seat(free[0] if free else empty, stage, stages)


def lacking(claims: Mapping[str, int], stages: int, promised: Iterable[int] = ()) -> int:
    """Return the stage of the first free seat, for a newcomer. `promised`: stages of newcomers on their way."""
    crews, coming = _crews(holders(claims), stages), Counter(promised)
    for stage in (stage for crew in _ranked(crews) for stage in range(stages) if stage not in crews[crew]):
        if not coming[stage]:
            return stage
        coming[stage] -= 1
    return min(range(stages), key=lambda stage: coming[stage])


def _crews(held: Mapping[int, str], stages: int) -> dict[int, dict[int, str]]:
    """Return crew -> stage -> member."""
    crews: dict[int, dict[int, str]] = {}
    for number, peer in held.items():
        crew, stage = place(number, stages)
        crews.setdefault(crew, {})[stage] = peer
    return crews


def _ranked(crews: Mapping[int, Mapping[int, str]]) -> list[int]:
    """Return crews in the order in which they are filled: those that lack the fewest, of these the ones apart, of these the lowest."""
    return sorted(crews, key=lambda crew: (-len(crews[crew]), crew < APART, crew))


def _friendly(free: Iterable[int], crews: Mapping[int, Mapping[int, str]], friends: Collection[str]) -> list[int]:
    """Return those in which friends sit, the most first."""
    number = {crew: sum(peer in friends for peer in crews[crew].values()) for crew in free}
    return sorted((crew for crew in number if number[crew]), key=lambda crew: -number[crew])


def digest(peers: Iterable[tuple[str, int]]) -> bytes:
    """Return 8 bytes that identify a crew's current composition: (peer, incarnation) in the order of stages."""
    made = hashlib.blake2b(digest_size=8)
    for peer, incarnation in peers:
        made.update(f"{peer} {incarnation}\n".encode())
    return made.digest()
