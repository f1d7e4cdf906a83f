"""From a set of members to ranks that nobody chose, and a short name for the set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def ranked(members: Iterable[str], salt: bytes) -> tuple[str, ...]:
    """Members in the order of BLAKE2b(salt, id): nobody chooses whom it sits beside, and another salt shuffles anew.

    The same for every order of `members`; duplicates count once.
    """
    prefix = hashlib.blake2b(len(salt).to_bytes(4, "little") + salt, digest_size=16)

    def key(member: str) -> tuple[bytes, str]:
        state = prefix.copy()
        state.update(member.encode())
        return state.digest(), member

    return tuple(sorted(set(members), key=key))


def digest(members: Iterable[str]) -> bytes:
    """16 bytes that name the set: nodes exchange on a schedule only if theirs are equal."""
    state = hashlib.blake2b(digest_size=16)
    for member in sorted(set(members)):
        raw = member.encode()
        state.update(len(raw).to_bytes(4, "little") + raw)
    return state.digest()
