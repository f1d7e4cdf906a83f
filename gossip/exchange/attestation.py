"""Signatures under published vectors: a node signs one vector per round, so two signed vectors for one round prove equivocation.

Signed are swarm, peer, incarnation of the peer's record, round, and the digest of the vector: the peer's id suffices for verification, the
vector is not needed. A node that restarts from a checkpoint repeats some rounds with other vectors, which is no equivocation: it has
another incarnation. Signing and verification are passed in.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgpack

from starling.gossip.wire.schema import Claim, Pulled

Verify = Callable[[str, bytes, bytes], bool]
"""(peer, signature, message) -> whether the peer signed it; `starling.node.identity.verify` is one."""

_DOMAIN = b"starling/pulled/1\0"
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Attestation:
    """A peer's signature of its vector of a round: Ed25519 over `body`, which holds `digest`, that of the encoded vector."""

    swarm: str
    peer: str
    incarnation: int
    round: int
    digest: bytes
    signature: bytes


def digest(payload: bytes | memoryview) -> bytes:
    """Return the BLAKE2b-256 digest of an encoded vector."""
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


def body(swarm: str, peer: str, incarnation: int, round: int, digest: bytes) -> bytes:
    """Return the signed bytes."""
    packed: bytes = msgpack.packb([swarm, peer, incarnation, round, digest], use_bin_type=True)
    return _DOMAIN + packed


def attestation_of(swarm: str, peer: str, pulled: Pulled) -> Attestation:
    """Return the attestation in an answer of `peer`; not verified yet."""
    return Attestation(swarm, peer, pulled.incarnation, pulled.round, pulled.digest, pulled.signature)


def claim_of(statement: Attestation) -> Claim:
    """Return a statement in the form that is forwarded, without the swarm's id."""
    return Claim(statement.peer, statement.incarnation, statement.round, statement.digest, statement.signature)


def statement_of(claim: Claim, swarm: str) -> Attestation:
    """Return the statement in a claim, not yet verified."""
    return Attestation(swarm, claim.peer, claim.incarnation, claim.round, claim.digest, claim.signature)


def genuine(it: Attestation, verify: Verify) -> bool:
    """Tell if the peer signed it."""
    return verify(it.peer, it.signature, body(it.swarm, it.peer, it.incarnation, it.round, it.digest))


def contradicts(one: Attestation, other: Attestation, verify: Verify) -> bool:
    """Tell if two attestations prove that their peer published two vectors for one round. Symmetric; an honest peer never signs two."""
    same = replace(one, digest=b"", signature=b"") == replace(other, digest=b"", signature=b"")
    return same and one.digest != other.digest and genuine(one, verify) and genuine(other, verify)
