"""What a node signs about the vector it tells: one signature per round, so that two vectors for one round prove that it lied.

    statement   "I, peer, tell this swarm in this life for this round the vector with this digest"

It is checked without the vector, by anybody who knows the peer's id. Signing and checking are passed in: no key lies here. A life is
one start of the node: who comes back from a checkpoint does some rounds again and may come to other vectors, which is no lie.
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
class Statement:
    """A signed statement; `body` gives the bytes that are signed.

    Args:
        swarm: swarm id.
        peer: who says it.
        life: incarnation of its membership record.
        round: of the vector.
        digest: `digest` of the encoded vector.
        signature: Ed25519, 64 bytes.
    """

    swarm: str
    peer: str
    life: int
    round: int
    digest: bytes
    signature: bytes


def digest(payload: bytes | memoryview) -> bytes:
    """32 bytes that stand for an encoded vector."""
    return blake2b(payload, digest_size=DIGEST_BYTES).digest()


def body(swarm: str, peer: str, life: int, round: int, digest: bytes) -> bytes:
    """What is signed."""
    packed: bytes = msgpack.packb([swarm, peer, life, round, digest], use_bin_type=True)
    return _DOMAIN + packed


def stated(swarm: str, peer: str, pulled: Pulled) -> Statement:
    """What `peer` stated with an answer; not yet checked."""
    return Statement(swarm, peer, pulled.life, pulled.round, pulled.digest, pulled.signature)


def genuine(statement: Statement, verify: Verify) -> bool:
    """Whether the peer signed it."""
    it = statement
    return verify(it.peer, it.signature, body(it.swarm, it.peer, it.life, it.round, it.digest))


def contradicts(one: Statement, other: Statement, verify: Verify) -> bool:
    """Whether two statements prove that their peer told two vectors for one round. Symmetric; nobody honest can be proved that."""
    same = (one.swarm, one.peer, one.life, one.round) == (other.swarm, other.peer, other.life, other.round)
    return same and one.digest != other.digest and genuine(one, verify) and genuine(other, verify)
