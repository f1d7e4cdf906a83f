"""Unpredictable salts of the ranks: a signature of the creator for each epoch.

An epoch is `overlay.rerank_every` rounds, throughout which members keep their ranks. If its salt were a hash of public data, an attacker
could compute all orders in advance and generate peer ids until one becomes a victim's neighbor in a chosen epoch. So the creator signs the
epoch's number, and a hash of that signature goes into the salt: only the creator can compute it, and all members can verify it.

    epoch 0          the swarm's own salt, which is public
    epoch e          the beacon of e + 1 is published when the creator enters e
    no beacon        the salt is derived from the swarm's, and is predictable

Signing is deterministic for a creator that follows RFC 8032, but others cannot check that: a dishonest creator chooses among orders.
Source of coins from signatures on a counter: Cachin, Kursawe and Shoup 2000, Random Oracles in Constantinople. They share the key
among many; here the creator holds it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

import msgpack

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import Verify
from starling.gossip.overlay.ranks import salt_of
from starling.gossip.wire.schema import Beacon

AHEAD = 2  # epochs beyond ours that a beacon may be of: the creator may be one epoch ahead of us, and publishes for the next
VALUE_BYTES = 32
_DOMAIN = b"starling/beacon/1\0"


def body(swarm: str, epoch: int) -> bytes:
    """Return the bytes that the creator signs."""
    packed: bytes = msgpack.packb([swarm, epoch], use_bin_type=True)
    return _DOMAIN + packed


def signed(swarm: str, epoch: int, sign: Callable[[bytes], bytes]) -> Beacon:
    """Return the creator's beacon of an epoch >= 1 of a swarm; `sign` is the creator's Ed25519."""
    return Beacon(epoch, sign(body(swarm, epoch)))


def value(beacon: Beacon) -> bytes:
    """Return 32 bytes, pseudo-random without the beacon."""
    return blake2b(beacon.signature, digest_size=VALUE_BYTES).digest()


@dataclass(slots=True)
class Beacons:
    """The newest beacons a node knows, at most `limit`; `verify` checks whether a peer signed a message."""

    swarm: str
    creator: str
    verify: Verify
    limit: int = 8
    _held: dict[int, Beacon] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.limit <= AHEAD:
            raise ValueError(f"limit must be > {AHEAD}, got {self.limit}")

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._held

    def salt(self, salt: bytes, epoch: int) -> bytes:
        """Return the salt of an epoch's ranks, from the swarm's; without the epoch's beacon the predictable one."""
        beacon = self._held.get(epoch)
        return salt_of(salt, epoch, b"" if beacon is None else value(beacon))

    def wants(self, beacon: Beacon, now: int) -> bool:
        """Return whether a beacon is worth verifying: not stored yet, of an epoch that may be stored while ours is `now`."""
        if not 1 <= beacon.epoch <= now + AHEAD or self._held.get(beacon.epoch) == beacon:
            return False
        return beacon.epoch in self._held or len(self._held) < self.limit or beacon.epoch > min(self._held)

    def take(self, sender: str, beacon: Beacon, now: int) -> bool:
        """Verify and store a beacon from `sender`; return whether it is new, and to be forwarded. `now` as in `wants`.

        The first one of an epoch is kept, even if the creator signed another. Raises RemoteProtocolError: beacon_forged.
        """
        if not self.wants(beacon, now):
            return False
        if not self.verify(self.creator, beacon.signature, body(self.swarm, beacon.epoch)):
            raise RemoteProtocolError(sender, "beacon_forged")
        if beacon.epoch in self._held:
            return False
        if len(self._held) >= self.limit:
            del self._held[min(self._held)]
        self._held[beacon.epoch] = beacon
        return True

    def since(self, epoch: int) -> tuple[Beacon, ...]:
        """Return the known ones of an epoch and of the AHEAD after it, in order."""
        return tuple(self._held[at] for at in range(epoch, epoch + AHEAD + 1) if at in self._held)
