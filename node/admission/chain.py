"""Chains of signed invitations, from the creator through members to the last invitee.

    creator ─ link ─▶ holder ─ link ─▶ holder ─ …   a link: (invitee, depth left, quota, not after, number), signed by the holder before

An invitation names its invitee by a public key: a peer's, or a *bearer key* whose private half travels with the invite. The node that uses
a bearer key signs its own peer id with it and is the holder from then on; so a chain that is read on the wire is of no use to another peer.
`number` counts an inviter's invitations and is below its quota (the creator has none), so no member can invite more than its quota: two
peers with the same inviter and number are one invitation used twice, which every node can see, and for which the inviter is penalised.

A holder may invite while it has depth left, and passes on less. Nothing outlives `not_after_ms` of any link above it.

Every function is pure: keys and the time are arguments. Sizes: a link is under 225 bytes, a chain has at most 8.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from starling.gossip.wire.schema import MAX_CREDENTIAL_BYTES
from starling.node.config.admission import Invitations
from starling.node.config.schema import Manifest
from starling.node.identity import Identity, peer_id_of, public_key_of, verify

T = TypeVar("T")

MAX_LINKS = 8
MAX_NUMBER = 2**32
_INVITATION = b"starling/invitation/1\0"
_BEARER = b"starling/bearer/1\0"
_KEY = 32
_SIGNATURE = 64


class Link(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One invitation. Its fields are checked when it is decoded."""

    invitee: Annotated[bytes, Meta(min_length=_KEY, max_length=_KEY)]  # public key, or a bearer key; 32 bytes
    depth: Annotated[int, Meta(ge=0, lt=MAX_LINKS)]  # number of links that may follow, 0 to 7
    quota: Annotated[int, Meta(ge=0, le=64)]  # number of peers that the holder may invite, 0 to 64
    not_after_ms: Annotated[int, Meta(ge=0, le=2**53)]  # unix time in ms at which it ends
    number: Annotated[int, Meta(ge=0, lt=MAX_NUMBER)]  # its number among its inviter's invitations, from 0
    signature: Annotated[bytes, Meta(min_length=_SIGNATURE, max_length=_SIGNATURE)]  # the inviter's
    bound: bytes = b""  # public key of the node that uses a bearer key; b"" without one
    bound_signature: bytes = b""  # signature of the bearer key over `bound`

    def __post_init__(self) -> None:
        if (len(self.bound), len(self.bound_signature)) not in {(0, 0), (_KEY, _SIGNATURE)}:
            raise ValueError("only one half of a binding")

    @property
    def holder(self) -> str:
        """Return the peer id of the member it admits."""
        return peer_id_of(self.bound or self.invitee)


Chain = Annotated[tuple[Link, ...], Meta(max_length=MAX_LINKS)]
Slot = tuple[str, int]  # (inviter, number): one invitation, whichever node uses it


@dataclass(frozen=True, slots=True)
class Terms:
    """The swarm's rules of invitations: `depth`, the longest chain, and `quota`, the most that a member may invite."""

    swarm: str
    creator: str
    depth: int
    quota: int


def terms_of(manifest: Manifest, swarm: str) -> Terms:
    """Return a swarm's terms of invitations."""
    admission = manifest.admission
    agreed = Invitations(**admission.params()) if admission.kind == "invite" else Invitations()
    return Terms(swarm, manifest.founder, agreed.depth, agreed.quota)


def invite(
    inviter: Identity, above: Chain, terms: Terms, *, invitee: str, number: int, not_after_ms: int, quota: int | None = None
) -> Chain:
    """Return a chain with one more invitation, by the creator or the holder of `above`, which is empty for the creator.

    `invitee` is a peer id, or that of a bearer key; `number` not used before, from 0, below the quota unless the creator invites; `quota`
    how many the invitee may invite, None: the swarm's. Raises ValueError: in snake_case: the chain would not be one.
    """
    depth = (above[-1].depth if above else terms.depth) - 1
    quota = terms.quota if quota is None else quota
    link = Link(public_key_of(invitee), depth, quota if depth > 0 else 0, not_after_ms, number, b"")
    chain = (*above, replace(link, signature=inviter.sign(_signed(terms.swarm, inviter.peer_id, link))))
    check(chain, terms)
    return chain


def bind(chain: Chain, bearer: bytes, holder: str, swarm: str) -> Chain:
    """Return the chain with its last invitation, of a key whose private half is `bearer`, 32 bytes, bound to the node that uses it,
    `holder`.
    """
    *above, last = chain
    key = public_key_of(holder)
    signature = Identity.from_seed(bearer).sign(_binding(swarm, last.invitee, key))
    return (*above, replace(last, bound=key, bound_signature=signature))


def check(chain: Chain, terms: Terms) -> None:
    """Check that each invitation was the inviter's to give, and every signature; not the time and revocations.

    Raises ValueError: the reason in snake_case; honest nodes never forward such a chain.
    """
    if not chain:
        raise ValueError("chain_empty")
    if len(chain) > min(terms.depth, MAX_LINKS):
        raise ValueError("chain_too_deep")
    depth, quota, inviter = terms.depth, MAX_NUMBER, terms.creator
    for link in chain:
        if not 0 <= link.depth < depth or not link.quota <= terms.quota:
            raise ValueError("chain_beyond_depth")
        if not link.number < quota:
            raise ValueError("chain_beyond_quota")
        if not verify(inviter, link.signature, _signed(terms.swarm, inviter, link)):
            raise ValueError("chain_signature")
        binding = _binding(terms.swarm, link.invitee, link.bound)
        if link.bound and not verify(peer_id_of(link.invitee), link.bound_signature, binding):
            raise ValueError("chain_binding")
        depth, quota, inviter = link.depth, link.quota, link.holder
    members = [terms.creator, *(link.holder for link in chain)]
    if len(set(members)) < len(members):
        raise ValueError("chain_loop")


def slots(chain: Chain, creator: str) -> tuple[Slot, ...]:
    """Return the invitations of the chain."""
    holders = (creator, *(link.holder for link in chain))
    return tuple((inviter, link.number) for inviter, link in zip(holders, chain, strict=False))


def inviters(chain: Chain, creator: str) -> tuple[str, ...]:
    """Peers that answer for the last holder: the creator first, its direct inviter last."""
    return (creator, *(before.holder for before, _ in pairwise(chain)))[: len(chain)]


def not_after_ms(chain: Chain) -> int:
    """Return the time at which the chain expires, in milliseconds."""
    return min(link.not_after_ms for link in chain)


def from_bytes(raw: bytes) -> Chain:
    """Return the chain in bytes. Raises ValueError: "chain_malformed": these are not the bytes of one."""
    try:
        return decode(raw, Chain)
    except ValueError as error:
        raise ValueError("chain_malformed") from error


def encode(plain: object) -> bytes:
    """Return the canonical encoding (msgpack) of plain values and structs."""
    return msgspec.msgpack.encode(plain)


def decode(raw: bytes, kind: type[T]) -> T:
    """Decode what `encode` made, checked against its type. Raises ValueError: not the canonical encoding of a `kind`."""
    if len(raw) > MAX_CREDENTIAL_BYTES:
        raise ValueError("too long")
    try:
        value = msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("not the canonical encoding") from error
    if encode(value) != raw:
        raise ValueError("another encoding")
    return value


def _signed(swarm: str, inviter: str, link: Link) -> bytes:
    terms = link.depth, link.quota, link.not_after_ms, link.number
    return _INVITATION + encode((swarm, public_key_of(inviter), link.invitee, *terms))


def _binding(swarm: str, bearer: bytes, holder: bytes) -> bytes:
    return _BEARER + encode((swarm, bearer, holder))
