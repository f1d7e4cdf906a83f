"""Revocations of invitations: a bounded set that depends only on the revocations received, not on their order.

A revocation names an invitation by its slot (inviter, number): all chains through that slot are void, and the slot is used up, until
the invitation ends; then its number may be given again. It is signed by the inviter, by a peer above it in the chain, or by the creator,
and carries the chain down to the slot, so that every node can verify it. When that chain expires the revocation is dropped.

Bounds: `MAX_HELD` in all and `MAX_PER_BRANCH` below each member that the creator invited; the shortest chains stay, then the lowest
slots. So no member can fill the set with revocations below itself, or push out others', and the order of arrival does not matter.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from starling.gossip.wire.schema import Revocation
from starling.node.admission import chain as chains
from starling.node.admission.chain import Chain, Slot, Terms
from starling.node.identity import Identity, public_key_of, verify

MAX_HELD = 1024
MAX_PER_BRANCH = 64
_REVOCATION = b"starling/revocation/1\0"
_DIGEST_BYTES = 16


def revoke(who: Identity, chain: Chain, terms: Terms) -> Revocation:
    """Revoke the last invitation of a chain, as the creator or as a peer above the last holder.

    Raises ValueError: in snake_case: there is no such invitation, or it is not theirs to revoke ("revoked_by_another").
    """
    chains.check(chain, terms)
    slot = chains.slots(chain, terms.creator)[-1]
    revocation = Revocation(chains.encode(chain), who.peer_id, who.sign(_signed(terms.swarm, slot)))
    check(revocation, chain, terms)
    return revocation


def check(revocation: Revocation, chain: Chain, terms: Terms) -> None:
    """Check a revocation of the last invitation of `chain`, which is that of the revocation, decoded.

    Raises ValueError: why it is invalid, in snake_case.
    """
    chains.check(chain, terms)
    if revocation.by not in chains.inviters(chain, terms.creator):
        raise ValueError("revoked_by_another")
    if not verify(revocation.by, revocation.signature, _signed(terms.swarm, chains.slots(chain, terms.creator)[-1])):
        raise ValueError("revocation_forged")


@dataclass(frozen=True, slots=True)
class _Listed:
    revocation: Revocation
    chain: Chain
    slot: Slot
    branch: Slot

    @property
    def rank(self) -> tuple[int, Slot]:
        return len(self.chain), self.slot


@dataclass(slots=True)
class Revocations:
    """The revocations that one node knows, under the swarm's terms."""

    terms: Terms
    listed: tuple[Revocation, ...] = ()  # sorted by slot, the same order at every node
    digest: bytes = bytes(_DIGEST_BYTES)  # digest of the void slots
    _held: dict[Slot, _Listed] = field(default_factory=dict)

    def add(self, revocations: Iterable[Revocation], now_ms: int) -> list[Revocation]:
        """Add revocations; return the new ones that are stored. Raises ValueError: one is invalid; then none was added."""
        fresh: list[_Listed] = []
        for revocation in revocations:
            chain = chains.from_bytes(revocation.chain)
            path = chains.slots(chain, self.terms.creator)
            if not path or self._in_force(path[-1], now_ms) is None:
                check(revocation, chain, self.terms)  # expensive, so only for unknown ones
                fresh.append(_Listed(revocation, chain, path[-1], path[0]))
        if not fresh:
            return []
        for each in fresh:
            self._held[each.slot] = self._in_force(each.slot, now_ms) or each
        self._trim(now_ms)
        return [each.revocation for each in fresh if self._held.get(each.slot) is each]

    def voids(self, chain: Chain, now_ms: int) -> Revocation | None:
        """Return the revocation of one of a chain's invitations, the one nearest to the creator; None if all are valid."""
        held = (self._in_force(slot, now_ms) for slot in chains.slots(chain, self.terms.creator))
        return next((each.revocation for each in held if each is not None), None)

    def _in_force(self, slot: Slot, now_ms: int) -> _Listed | None:
        """Return the revocation of a slot; None: there is none, or its invitation has ended, so that the number may be given again."""
        each = self._held.get(slot)
        return None if each is None or chains.not_after_ms(each.chain) <= now_ms else each

    def _trim(self, now_ms: int) -> None:
        branches: Counter[Slot] = Counter()
        kept: dict[Slot, _Listed] = {}
        for each in sorted(self._held.values(), key=lambda held: held.rank):
            if len(kept) == MAX_HELD or chains.not_after_ms(each.chain) <= now_ms:
                continue
            if len(each.chain) > 1:
                branches[each.branch] += 1
                if branches[each.branch] > MAX_PER_BRANCH:
                    continue
            kept[each.slot] = each
        self._held = kept
        self.listed = tuple(kept[slot].revocation for slot in sorted(kept))
        encoded = chains.encode([list(slot) for slot in sorted(kept)])
        self.digest = hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).digest()


def _signed(swarm: str, slot: Slot) -> bytes:
    return _REVOCATION + chains.encode((swarm, public_key_of(slot[0]), slot[1]))
