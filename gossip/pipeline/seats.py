"""Who holds which stage of which crew, from what members say of themselves in their signed records; pure.

A seat is a number: 0 for none, else 1 + crew · N + stage. Of several who claim one the smallest peer id has it, and the others look for the
next. Whoever waits in a crew that is not whole moves to the lowest one that lacks its stage, so broken crews become whole ones.

Shapes: N stages.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Mapping

MAX_SEAT = 1 << 20


def seat(crew: int, stage: int, stages: int) -> int:
    """The number of a seat."""
    return 1 + crew * stages + stage


def place(number: int, stages: int) -> tuple[int, int]:
    """(crew, stage) of a seat, > 0."""
    return divmod(number - 1, stages)


def holders(claims: Mapping[str, int]) -> dict[int, str]:
    """Seat -> who has it, of peer -> seat claimed."""
    return {number: peer for peer, number in sorted(claims.items(), reverse=True) if 0 < number <= MAX_SEAT}


def whole(claims: Mapping[str, int], stages: int) -> dict[int, tuple[str, ...]]:
    """Crew -> its peers in the order of stages, of those crews that lack nobody, the lowest first."""
    held = holders(claims)
    crews = sorted({place(number, stages)[0] for number in held})
    found = {crew: tuple(held.get(seat(crew, stage, stages), "") for stage in range(stages)) for crew in crews}
    return {crew: peers for crew, peers in found.items() if all(peers)}


def chosen(claims: Mapping[str, int], stages: int, me: str, stage: int, avoided: Container[str] = frozenset()) -> int:
    """Return the seat that a node is to claim, given all claims, its own too: the one it has in a whole crew, else the lowest that is free.

    Never one in a crew of which one that is `avoided` has a seat.
    """
    held = holders(claims)
    closed = {place(number, stages)[0] for number, peer in held.items() if peer in avoided}
    own = claims.get(me, 0)
    if own and held.get(own) == me and place(own, stages)[0] in whole(claims, stages).keys() - closed:
        return own
    crew = 0
    while crew in closed or held.get(seat(crew, stage, stages), me) != me:
        crew += 1
    return seat(crew, stage, stages)


def lacking(claims: Mapping[str, int], stages: int, promised: Iterable[int] = ()) -> int:
    """The stage of which a newcomer is wanted most: that of the lowest free seat. `promised`: stages of newcomers on their way."""
    taken, coming, crew = set(holders(claims)), Counter(promised), 0
    while True:
        for stage in range(stages):
            if seat(crew, stage, stages) in taken:
                continue
            if not coming[stage]:
                return stage
            coming[stage] -= 1
        crew += 1


def digest(peers: Iterable[tuple[str, int]]) -> bytes:
    """8 bytes that name a crew as it is now: (peer, incarnation) in the order of stages."""
    made = hashlib.blake2b(digest_size=8)
    for peer, incarnation in peers:
        made.update(f"{peer} {incarnation}\n".encode())
    return made.digest()
