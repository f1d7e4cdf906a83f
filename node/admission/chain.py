"""Chains of signed invitations, from the founder through members to the last invitee.

    founder ─ link ─▶ holder ─ link ─▶ holder ─ …   a link: (invitee, depth left, quota, not after, number), signed by the holder before

An invitation names its invitee: a peer id, or a *bearer key*, whose private half travels with the invite. The node that uses it signs its
own peer id with it and is the holder from then on; so a chain that is read on the wire is of no use to another peer. `number` counts an
inviter's invitations and is below its quota (the founder has none), so no member can invite more than its quota: two peers with the same
inviter and number are one invitation used twice, which every node can see, and for which the inviter is penalised.

A holder may invite while it has depth left; what it gives on has less. Nothing outlives `not_after_ms` of any link above it.

Every function is pure: keys and the time are arguments. Sizes: a link is under 225 bytes, a chain has at most 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, TypeVar

import msgpack
import msgspec
from msgspec import Meta

from starling.gossip.wire.schema import MAX_CREDENTIAL_BYTES
from starling.node.identity import Identity, peer_id_of, public_key_of, verify

T = TypeVar("T")

MAX_LINKS = 8
MAX_NUMBER = 2**32
_INVITATION = b"starling/invitation/1\0"
_BEARER = b"starling/bearer/1\0"
_KEY = 32
_SIGNATURE = 64


class Packed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A link as it lies in a credential: keys instead of peer ids."""

    invitee: Annotated[bytes, Meta(min_length=_KEY, max_length=_KEY)]
    depth: Annotated[int, Meta(ge=0, lt=MAX_LINKS)]
    quota: Annotated[int, Meta(ge=0, le=64)]
    not_after_ms: Annotated[int, Meta(ge=0, le=2**53)]
    number: Annotated[int, Meta(ge=0, lt=MAX_NUMBER)]
    signature: Annotated[bytes, Meta(min_length=_SIGNATURE, max_length=_SIGNATURE)]
    bound: Annotated[bytes, Meta(max_length=_KEY)]
    bound_signature: Annotated[bytes, Meta(max_length=_SIGNATURE)]


PackedChain = Annotated[tuple[Packed, ...], Meta(max_length=MAX_LINKS)]


@dataclass(frozen=True, slots=True)
class Link:
    """One invitation.

    Args:
        invitee: peer id of the invitee, or of a bearer key.
        depth: how many more links may follow, 0 to 7.
        quota: how many the holder may invite, 0 to 64.
        not_after_ms: unix time in ms at which it ends.
        number: which of its inviter's invitations it is, from 0.
        signature: the inviter's.
        bound: peer id of the node that uses a bearer key; "" if there is none.
        bound_signature: the bearer key's, over `bound`.
    """

    invitee: str
    depth: int
    quota: int
    not_after_ms: int
    number: int
    signature: bytes
    bound: str = ""
    bound_signature: bytes = b""

    @property
    def holder(self) -> str:
        """Peer id of the member it admits."""
        return self.bound or self.invitee


Chain = tuple[Link, ...]
Slot = tuple[str, int]
"""(inviter, number): one invitation, whichever node uses it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the swarm agreed on about invitations.

    Args:
        swarm: its id.
        founder: peer id.
        depth: longest chain.
        quota: most that a member may invite.
    """

    swarm: str
    founder: str
    depth: int
    quota: int


def invite(
    inviter: Identity,
    above: Chain,
    terms: Terms,
    *,
    invitee: str,
    number: int,
    not_after_ms: int,
    quota: int | None = None,
) -> Chain:
    """A chain with one more invitation.

    Args:
        inviter: the founder, or the holder of `above`.
        above: the inviter's own chain; empty for the founder.
        terms: of the swarm.
        invitee: peer id, or that of a bearer key.
        number: a number not used before, from 0; below the quota unless the founder invites.
        not_after_ms: when it ends.
        quota: how many the invitee may invite; the swarm's quota if None.

    Raises:
        ValueError: in snake_case: the chain would not be one.
    """
    depth = (above[-1].depth if above else terms.depth) - 1
    quota = terms.quota if quota is None else quota
    link = Link(invitee, depth, quota if depth > 0 else 0, not_after_ms, number, b"")
    chain = (*above, replace(link, signature=inviter.sign(_signed(terms.swarm, inviter.peer_id, link))))
    check(chain, terms)
    return chain


def bind(chain: Chain, bearer: bytes, holder: str, swarm: str) -> Chain:
    """The chain with its last invitation bound to the node that uses it.

    Args:
        chain: ends with the invitation of a bearer key.
        bearer: the private half of that key, 32 bytes.
        holder: peer id of the node that uses it.
        swarm: swarm id.
    """
    *above, last = chain
    signature = Identity.from_seed(bearer).sign(_binding(swarm, last.invitee, holder))
    return (*above, replace(last, bound=holder, bound_signature=signature))


def check(chain: Chain, terms: Terms) -> None:
    """Whether each invitation was the inviter's to give, and every signature fits. Time and revocations are others' business.

    Raises:
        ValueError: the reason in snake_case; honest nodes never forward such a chain.
    """
    if not chain:
        raise ValueError("chain_empty")
    if len(chain) > min(terms.depth, MAX_LINKS):
        raise ValueError("chain_too_deep")
    depth, quota, inviter = terms.depth, MAX_NUMBER, terms.founder
    for link in chain:
        if not 0 <= link.depth < depth or not link.quota <= terms.quota:
            raise ValueError("chain_beyond_depth")
        if not link.number < quota:
            raise ValueError("chain_beyond_quota")
        if not verify(inviter, link.signature, _signed(terms.swarm, inviter, link)):
            raise ValueError("chain_signature")
        if link.bound and not verify(
            link.invitee, link.bound_signature, _binding(terms.swarm, link.invitee, link.bound)
        ):
            raise ValueError("chain_binding")
        depth, quota, inviter = link.depth, link.quota, link.holder
    members = [terms.founder, *(link.holder for link in chain)]
    if len(set(members)) < len(members):
        raise ValueError("chain_loop")


def slots(chain: Chain, founder: str) -> tuple[Slot, ...]:
    """Which invitations the chain is made of."""
    holders = (founder, *(link.holder for link in chain))
    return tuple((inviter, link.number) for inviter, link in zip(holders, chain, strict=False))


def inviters(chain: Chain, founder: str) -> tuple[str, ...]:
    """Peers that answer for the last holder: the founder first, its direct inviter last."""
    return (founder, *(before.holder for before, _ in pairwise(chain)))[: len(chain)]


def not_after_ms(chain: Chain) -> int:
    """When the chain ends."""
    return min(link.not_after_ms for link in chain)


def pack(chain: Chain) -> tuple[Packed, ...]:
    """As it lies in a credential."""
    return tuple(
        Packed(public_key_of(k.invitee), k.depth, k.quota, k.not_after_ms, k.number, k.signature,
               public_key_of(k.bound) if k.bound else b"", k.bound_signature)
        for k in chain
    )  # fmt: skip


def unpack(packed: Sequence[Packed]) -> Chain:
    """What `pack` made.

    Raises:
        ValueError: a binding without its signature, or the other way round.
    """
    if any((len(k.bound), len(k.bound_signature)) not in {(0, 0), (_KEY, _SIGNATURE)} for k in packed):
        raise ValueError("half a binding")
    return tuple(
        Link(peer_id_of(k.invitee), k.depth, k.quota, k.not_after_ms, k.number, k.signature,
             peer_id_of(k.bound) if k.bound else "", k.bound_signature)
        for k in packed
    )  # fmt: skip


def to_bytes(chain: Chain) -> bytes:
    """A chain on its own."""
    return encode(pack(chain))


def from_bytes(raw: bytes) -> Chain:
    """The chain in bytes.

    Raises:
        ValueError: "chain_malformed": these are not the bytes of one.
    """
    try:
        return unpack(decode(raw, PackedChain))
    except ValueError as error:
        raise ValueError("chain_malformed") from error


def encode(plain: object) -> bytes:
    """The one encoding of plain values."""
    packed: bytes = msgpack.packb(msgspec.to_builtins(plain, builtin_types=(bytes,)), use_bin_type=True)
    return packed


def decode(raw: bytes, kind: type[T]) -> T:
    """What `encode` made, checked against its type.

    Raises:
        ValueError: these are not the bytes that `encode` makes of such a thing.
    """
    if len(raw) > MAX_CREDENTIAL_BYTES:
        raise ValueError("too long")
    try:
        plain = msgpack.unpackb(raw, raw=False, max_array_len=MAX_LINKS, max_map_len=0, max_ext_len=0)
        value = msgspec.convert(plain, type=kind, strict=True)
    except (ValueError, msgpack.UnpackException, RecursionError, msgspec.ValidationError) as error:
        raise ValueError("not the encoding of such a thing") from error
    if encode(value) != raw:
        raise ValueError("another encoding")
    return value


def _signed(swarm: str, inviter: str, link: Link) -> bytes:
    names = swarm, public_key_of(inviter), public_key_of(link.invitee)
    return _INVITATION + encode((*names, link.depth, link.quota, link.not_after_ms, link.number))


def _binding(swarm: str, bearer: str, holder: str) -> bytes:
    return _BEARER + encode((swarm, public_key_of(bearer), public_key_of(holder)))
