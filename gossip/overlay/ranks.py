"""Ranks of members by a salted hash, and digests of member sets."""

import hashlib
from collections.abc import Iterable


def ranked(members: Iterable[str], salt: bytes) -> tuple[str, ...]:
    """Members in the order of BLAKE2b(salt, id): a member cannot choose its neighbors, and another salt gives another order.

    The same for every order of `members`; duplicates count once.
    """
    prefix = hashlib.blake2b(len(salt).to_bytes(4, "little") + salt, digest_size=16)

    def key(member: str) -> tuple[bytes, str]:
        state = prefix.copy()
        state.update(member.encode())
        return state.digest(), member

    return tuple(sorted(set(members), key=key))


def ranked_at(members: Iterable[str], salt: bytes, round: int, every: int) -> tuple[str, ...]:
    """Return the order of `round` where members are reranked every `every` rounds, 0: never. It bounds how long any two stay neighbors."""
    return ranked(members, salt_of(salt, epoch_of(round, every)))


def epoch_of(round: int, every: int) -> int:
    """Return the number of the order that applies in `round`, from 0 on; `every` as in `ranked_at`."""
    return round // every if every else 0


def salt_of(salt: bytes, epoch: int, value: bytes = b"") -> bytes:
    """Return the salt of an epoch, from the swarm's, which is that of epoch 0, and the `value` of its beacon; without it the salt is
    public.
    """
    return hashlib.blake2b(epoch.to_bytes(8, "little") + value + salt, digest_size=16).digest() if epoch else salt


def digest(members: Iterable[str]) -> bytes:
    """16 bytes that name the set: nodes exchange on a schedule only if theirs are equal."""
    state = hashlib.blake2b(digest_size=16)
    for member in sorted(set(members)):
        raw = member.encode()
        state.update(len(raw).to_bytes(4, "little") + raw)
    return state.digest()


def order_digest(members: bytes, salt: bytes) -> bytes:
    """16 bytes that name the order of a set, given the set's `digest` and the salt of its ranks."""
    return hashlib.blake2b(members + salt, digest_size=16).digest()
