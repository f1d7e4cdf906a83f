"""The signature of a node under the vector it publishes: one per round, so that two vectors for one round prove equivocation.

Signed are swarm, peer, incarnation of the peer's record, round, and the digest of the vector; so everyone who knows the peer's id can check
an attestation without the vector. Signing and checking are passed in: no key lies here. A node that restarts from a checkpoint repeats some
rounds and may come to other vectors, which is no equivocation: it has another incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

import msgpack

from starling.gossip.wire.schema import Pulled

Verify = Callable[[str, bytes, bytes], bool]
"""(peer, signature, message) -> whether the peer signed it; `starling.node.identity.verify` is one."""

_DOMAIN = b"starling/pulled/1\0"
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Attestation:
    """A signed statement; `body` gives the bytes that are signed.

    Args:
        swarm: swarm id.
        peer: who says it.
        incarnation: incarnation of its membership record.
        round: of the vector.
        digest: `digest` of the encoded vector.
        signature: Ed25519, 64 bytes.
    """

    swarm: str
    peer: str
    incarnation: int
    round: int
    digest: bytes
    signature: bytes


def digest(payload: bytes | memoryview) -> bytes:
    """32 bytes that stand for an encoded vector."""
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


def body(swarm: str, peer: str, incarnation: int, round: int, digest: bytes) -> bytes:
    """What is signed."""
    packed: bytes = msgpack.packb([swarm, peer, incarnation, round, digest], use_bin_type=True)
    return _DOMAIN + packed


def attestation_of(swarm: str, peer: str, pulled: Pulled) -> Attestation:
    """What `peer` stated with an answer; not yet checked."""
    return Attestation(swarm, peer, pulled.incarnation, pulled.round, pulled.digest, pulled.signature)


def genuine(statement: Attestation, verify: Verify) -> bool:
    """Whether the peer signed it."""
    it = statement
    return verify(it.peer, it.signature, body(it.swarm, it.peer, it.incarnation, it.round, it.digest))


def contradicts(one: Attestation, other: Attestation, verify: Verify) -> bool:
    """Whether two statements prove that their peer published two vectors for one round. Symmetric; an honest peer never signs two."""
    same = (one.swarm, one.peer, one.incarnation, one.round) == (
        other.swarm,
        other.peer,
        other.incarnation,
        other.round,
    )
    return same and one.digest != other.digest and genuine(one, verify) and genuine(other, verify)
