"""An invite: one string that suffices to join. A prefix, and the base58 of msgpack and a checksum.

    starling1:   [swarm id, addresses]                      to a swarm that asks for no invitation
    starling2:   [swarm id, addresses, chain, bearer key]   with an invitation (node.admission.chain); a holder of the key may use it, once

The checksum detects copying errors, not forgery: the manifest found through it is checked against the swarm id, a hash.
"""

import hashlib
import re
from dataclasses import dataclass, field

import base58
import msgspec

from starling.gossip.errors import ConfigError
from starling.gossip.wire.schema import MAX_ADDRESSES
from starling.node.admission import chain as chains
from starling.node.admission.chain import Chain

PREFIX = "starling1:"
INVITED = "starling2:"
_ANY_VERSION = re.compile(r"starling(\d{1,6}):")
_MAX_TEXT = 8192
_MAX_ADDRESS = 256
_MAX_SWARM = 64
_CHECKSUM_BYTES = 4
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Invite:
    """Addresses of members, and the id of their swarm."""

    swarm: str  # its id
    bootstrap: tuple[str, ...]  # 1 to 8 multiaddrs with /p2p/ID of members
    chain: Chain = ()  # invitations down to the one that is given; empty where none is needed
    bearer: bytes = field(default=b"", repr=False)
    """Private half of the key that the last invitation is for, 32 bytes; b"" if it is for a peer by its id."""

    def __post_init__(self) -> None:
        if not 0 < len(self.swarm) <= _MAX_SWARM:
            raise ValueError(f"swarm: must have 1 to {_MAX_SWARM} characters, got {len(self.swarm)}")
        if not 0 < len(self.bootstrap) <= MAX_ADDRESSES:
            raise ValueError(f"bootstrap: must be 1 to {MAX_ADDRESSES} addresses, got {len(self.bootstrap)}")
        for address in self.bootstrap:
            if len(address) > _MAX_ADDRESS or not re.fullmatch(r"/[!-~]+/p2p/[1-9A-Za-z]+", address):
                raise ValueError(f"bootstrap: must be multiaddrs that end in /p2p/ID, got {address[:80]!r}")
        if len(self.bearer) not in {0, _KEY_BYTES} or (self.bearer and not self.chain):
            raise ValueError(f"bearer: must be {_KEY_BYTES} bytes, of an invitation, got {len(self.bearer)}")


def encode(invite: Invite) -> str:
    """Return the string to hand on."""
    plain: list[object] = [invite.swarm, list(invite.bootstrap)]
    prefix = PREFIX
    if invite.chain:
        prefix = INVITED
        plain += [chains.encode(invite.chain), invite.bearer]
    packed = msgspec.msgpack.encode(plain)
    text: str = base58.b58encode(packed + checksum_of(prefix, packed)).decode()
    return prefix + text


def decode(text: str) -> Invite:
    """Return the invite in a string. Raises ConfigError: in one line: not an invite, damaged, or of a newer version."""
    text = text.strip()
    version = _ANY_VERSION.match(text)
    if version is None or len(text) > _MAX_TEXT:
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise ConfigError(
            f"invite: {shown!r} is not one; it begins with {PREFIX!r} or {INVITED!r}, a member prints it with `starling invite`"
        )
    if version[0] not in {PREFIX, INVITED}:
        raise ConfigError(
            f"invite: is of version {version[1]}, this program reads versions 1 and 2; try `pip install --upgrade starling-swarm`"
        )
    try:
        return _unpack(version[0], text[len(PREFIX) :])
    except (ValueError, msgspec.DecodeError) as error:
        raise ConfigError(
            "invite: is damaged, some characters are missing or changed; copy it again, a member prints it with `starling invite`"
        ) from error


def _unpack(prefix: str, text: str) -> Invite:
    raw = base58.b58decode(text)
    packed, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if checksum != checksum_of(prefix, packed):
        raise ValueError("the checksum does not fit")
    if prefix == PREFIX:
        return Invite(*msgspec.msgpack.decode(packed, type=tuple[str, tuple[str, ...]]))
    swarm, bootstrap, chain, bearer = msgspec.msgpack.decode(packed, type=tuple[str, tuple[str, ...], bytes, bytes])
    return Invite(swarm, bootstrap, chains.from_bytes(chain), bearer)


def checksum_of(prefix: str, packed: bytes) -> bytes:
    """Return the checksum of what follows a prefix."""
    return hashlib.blake2b(prefix.encode() + packed, digest_size=_CHECKSUM_BYTES).digest()
