"""The credential in a record, which shows that its peer may be a member: msgpack [operator, ticket, chain], or nothing at all.

    ticket   [epoch, nonce]: a proof of work (starling.node.admission.work)
    chain    invitations from the creator to the peer (starling.node.admission.chain)

A credential has one canonical encoding; any other is refused. It is signed as part of the record. Ticket and chain are valid for one peer
and one swarm only, so no node can use another's.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from starling.gossip.wire.schema import MAX_CREDENTIAL_BYTES, Counter
from starling.node.admission import chain as chains
from starling.node.admission.chain import Chain

MAX_OPERATOR = 64


class Ticket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A proof of work: its epoch and its nonce."""

    epoch: Counter
    nonce: Counter


class Credential(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Proofs that a peer presents for admission."""

    operator: Annotated[str, Meta(max_length=MAX_OPERATOR)] = ""  # name of the operator, unverified
    ticket: Ticket | None = None  # a proof of work
    chain: Chain = ()  # invitations, the creator's first


NOTHING = Credential()


def encode(credential: Credential) -> bytes:
    """Return the bytes for a record; b"" for nothing. Raises ValueError: an operator that is not printable, or too many bytes."""
    if credential == NOTHING:
        return b""
    if len(credential.operator) > MAX_OPERATOR or not credential.operator.isprintable():
        raise ValueError(f"operator: must be at most {MAX_OPERATOR} printable characters, got {credential.operator!r}")
    raw = chains.encode(credential)
    if len(raw) > MAX_CREDENTIAL_BYTES:
        raise ValueError(f"a credential has at most {MAX_CREDENTIAL_BYTES} bytes, got {len(raw)}; use a shorter operator")
    return raw


def decode(raw: bytes) -> Credential:
    """Return the credential in a record. Raises ValueError: "credential_malformed": not the encoding of one."""
    if not raw:
        return NOTHING
    try:
        credential = chains.decode(raw, Credential)
        if credential == NOTHING or not credential.operator.isprintable():
            raise ValueError("not the canonical encoding, or an operator with unprintable characters")  # noqa: TRY301
    except ValueError as error:
        raise ValueError("credential_malformed") from error
    return credential
