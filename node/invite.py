"""An invite: one string that is all one needs to join. `starling1:` + base58 of msgpack [swarm id, addresses] + checksum.

The checksum is against slips of the pen, not against forgery: what the string leads to is checked by the swarm id, a hash.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import base58
import msgpack

from gossip.errors import ConfigError
from gossip.wire.schema import MAX_ADDRESSES

PREFIX = "starling1:"
_ANY_VERSION = re.compile(r"starling(\d{1,6}):")
_MAX_TEXT = 4096
_MAX_ADDRESS = 256
_MAX_SWARM = 64
_CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Invite:
    """Where to go, and which swarm must be found there.

    Args:
        swarm: swarm id.
        bootstrap: 1 to 8 multiaddrs with /p2p/ID of members.
    """

    swarm: str
    bootstrap: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.swarm) <= _MAX_SWARM:
            raise ValueError(f"swarm: must have 1 to {_MAX_SWARM} characters, got {len(self.swarm)}")
        if not 0 < len(self.bootstrap) <= MAX_ADDRESSES:
            raise ValueError(f"bootstrap: must be 1 to {MAX_ADDRESSES} addresses, got {len(self.bootstrap)}")
        for address in self.bootstrap:
            if len(address) > _MAX_ADDRESS or not re.fullmatch(r"/[!-~]+/p2p/[1-9A-Za-z]+", address):
                raise ValueError(f"bootstrap: must be multiaddrs that end in /p2p/ID, got {address[:80]!r}")


def encode(invite: Invite) -> str:
    """The string to hand on."""
    packed = msgpack.packb([invite.swarm, list(invite.bootstrap)], use_bin_type=True)
    text: str = base58.b58encode(packed + _checksum(packed)).decode()
    return PREFIX + text


def decode(text: str) -> Invite:
    """The invite in a string.

    Raises:
        ConfigError: in one line: not an invite, damaged, or of a newer version.
    """
    text = text.strip()
    version = _ANY_VERSION.match(text)
    if version is None or len(text) > _MAX_TEXT:
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise ConfigError(
            f"invite: {shown!r} is not one; it begins with {PREFIX!r}, a member prints it with `starling invite`"
        )
    if not text.startswith(PREFIX):
        raise ConfigError(
            f"invite: is of version {version[1]}, this program reads version 1; try `pip install --upgrade starling-swarm`"
        )
    try:
        return _unpack(text[len(PREFIX) :])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ConfigError(
            "invite: is damaged, some characters are missing or changed; copy it again, a member prints it with `starling invite`"
        ) from error


def _unpack(text: str) -> Invite:
    raw = base58.b58decode(text)
    packed, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if checksum != _checksum(packed):
        raise ValueError("the checksum does not fit")
    swarm, bootstrap = msgpack.unpackb(packed, raw=False, max_array_len=MAX_ADDRESSES)
    if not isinstance(swarm, str) or not isinstance(bootstrap, list):
        raise TypeError("not a swarm id and a list of addresses")
    return Invite(swarm, tuple(bootstrap))


def _checksum(packed: bytes) -> bytes:
    return hashlib.blake2b(PREFIX.encode() + packed, digest_size=_CHECKSUM_BYTES).digest()
