"""Tables of records compared by digests: what differs is found in O(log n) steps and O(differences · log n) bytes.

Theory of operation. A table is a sorted list of entries, one for each member: the key, a hash of its peer id, and the mark, a hash of its
record. A prefix of hexadecimal digits names the entries whose keys begin with it, a *branch*; the empty one names all. Two nodes compare
branches, beginning with the whole table:

    a branch's digest    equal: done. Else answered with the digests of the 16 branches below it, or with its entries if these are few
    all of its entries   answered with our records that are missing or differ there, and a request for those that we lack

No state is kept between two messages, and each is bounded, so a lost, repeated or invented one costs its own answer and no more. Which
differences are found first is left to chance (`start`), so that one that stays, of a record that we may not pass on, hides no other.

Source: range-based set reconciliation (Meyer 2023, arXiv:2212.13567), with the branches of a tree as ranges.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from starling.gossip.wire.schema import (
    KEY_BYTES,
    LEAF_ENTRIES,
    MARK_BYTES,
    MAX_BRANCHES,
    MAX_KEYS,
    MAX_LEAVES,
    PREFIX_DIGITS,
    Branch,
    Compare,
    Leaf,
    Record,
)

_DIGITS = "0123456789abcdef"
_ENTRY_BYTES = KEY_BYTES + MARK_BYTES
_ENCODER = msgspec.msgpack.Encoder()
T = TypeVar("T")


def key_of(peer: str) -> bytes:
    """Return the key of a peer's entry."""
    return hashlib.blake2b(peer.encode(), digest_size=KEY_BYTES).digest()


def entry_of(record: Record) -> bytes:
    """Key and mark of a record; without a seat that of versions that know none."""
    marked: object = record if record.seat else msgspec.structs.astuple(record)[:-1]
    return key_of(record.peer) + hashlib.blake2b(_ENCODER.encode(marked), digest_size=MARK_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Difference:
    """Messages to the peer whose Compare was received."""

    compare: Compare  # the entries below differing branches; may be empty
    missing: tuple[str, ...] = ()  # peers whose records it lacks or has in another version
    wanted: tuple[bytes, ...] = ()  # keys of records that we lack, at most MAX_KEYS


class Table:
    """The entries of one node at one time."""

    def __init__(self, entries: Iterable[tuple[bytes, str]]) -> None:
        """`entries`: with the peer of each."""
        pairs = sorted(entries)
        self._entries = [entry for entry, _ in pairs]
        self._peers = [peer for _, peer in pairs]

    def first_message(self, *, differs: bool) -> Compare:
        """Return the first message of a comparison; `differs`: it is known already that the whole tables do."""
        return self._below([""]) if differs else Compare((self.branch(""),))

    def peer_of(self, key: bytes) -> str | None:
        """Return the peer of a key's entry."""
        at = bisect_left(self._entries, key)
        return self._peers[at] if at < len(self._entries) and self._entries[at].startswith(key) else None

    def answer(self, message: Compare, start: int) -> Difference:
        """Return the answer to a peer's message.

        Args:
            message: whose leaves are `well_formed`.
            start: random, >= 0; with which part to begin.
        """
        differing = [it.prefix for it in _turned(message.branches, start) if self.branch(it.prefix) != it]
        missing, wanted = list[str](), list[bytes]()
        for leaf in _turned(message.leaves, start):
            theirs = {entry[:KEY_BYTES]: entry for entry in entries_in(leaf)}
            low, high = self._span(leaf.prefix)
            mine = {entry[:KEY_BYTES] for entry in self._entries[low:high]}
            missing += [self._peers[at] for at in range(low, high) if theirs.get(self._entries[at][:KEY_BYTES]) != self._entries[at]]
            wanted += [key for key in theirs if key not in mine]
        return Difference(self._below(differing), tuple(missing), tuple(wanted[:MAX_KEYS]))

    def _below(self, prefixes: Sequence[str]) -> Compare:
        """Return the branches below these, or the entries of those that are small, as far as they go into one message."""
        branches, leaves = list[Branch](), list[Leaf]()
        for prefix in prefixes:
            low, high = self._span(prefix)
            if high - low <= LEAF_ENTRIES or len(prefix) == PREFIX_DIGITS:
                leaves.append(Leaf(prefix, b"".join(self._entries[low : min(high, low + LEAF_ENTRIES)])))
            elif len(branches) + len(_DIGITS) <= MAX_BRANCHES:
                branches += [self.branch(prefix + digit) for digit in _DIGITS]
        return Compare(tuple(branches), tuple(leaves[:MAX_LEAVES]))

    def branch(self, prefix: str) -> Branch:
        """Return the digest of the entries whose key begins with a prefix."""
        low, high = self._span(prefix)
        return Branch(prefix, hashlib.blake2b(b"".join(self._entries[low:high]), digest_size=16).digest())

    def _span(self, prefix: str) -> tuple[int, int]:
        low = bytes.fromhex(prefix.ljust(2 * KEY_BYTES, "0"))
        high = bytes.fromhex(prefix.ljust(2 * _ENTRY_BYTES, "f"))
        return bisect_left(self._entries, low), bisect_left(self._entries, high + b"\0")


def entries_in(leaf: Leaf) -> list[bytes]:
    """Return the entries of a leaf."""
    return [leaf.entries[at : at + _ENTRY_BYTES] for at in range(0, len(leaf.entries), _ENTRY_BYTES)]


def well_formed(message: Compare) -> bool:
    """Tell if leaves hold whole entries, sorted, each once, with the prefix they name."""
    for leaf in message.leaves:
        keys = [entry[:KEY_BYTES] for entry in entries_in(leaf)]
        if len(leaf.entries) % _ENTRY_BYTES or keys != sorted(keys) or any(not key.hex().startswith(leaf.prefix) for key in keys):
            return False
    return True


def _turned(items: Sequence[T], start: int) -> list[T]:
    at = start % len(items) if items else 0
    return [*items[at:], *items[:at]]
