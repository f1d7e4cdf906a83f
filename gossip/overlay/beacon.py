"""Salts of the ranks that nobody can know far ahead: a signature of the founder's for each epoch.

An epoch is `overlay.rerank_every` rounds, throughout which members keep their ranks. Were its salt a hash of what everybody knows, anybody
could work out the order of any epoch at any time, and who picks its peer id could try ids until it sits beside a victim when it matters.
So the founder signs the epoch's number, and a hash of that signature goes into the salt: nobody else can work it out, anybody can check it.

    epoch 0          the swarm's own salt: nothing can be unknown to those who begin
    epoch e          the beacon of e + 1 is published when the founder enters e
    no beacon        the salt follows from the swarm's, as if nobody were to be kept from foreseeing it

Signing is deterministic for a founder that follows RFC 8032, but others cannot check that: a dishonest founder chooses among orders.
Source of coins that come from signing a number: Cachin, Kursawe and Shoup 2000, Random Oracles in Constantinople. They share the key
among many; here one holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

import msgpack

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.exchange.attestation import Verify
from starling.gossip.overlay.ranks import salt_of
from starling.gossip.wire.schema import Beacon

AHEAD = 2
"""Epochs beyond ours that a beacon may be of: the founder may be one epoch ahead of us, and publishes for the next."""
VALUE_BYTES = 32
_DOMAIN = b"starling/beacon/1\0"


def body(swarm: str, epoch: int) -> bytes:
    """What the founder signs."""
    packed: bytes = msgpack.packb([swarm, epoch], use_bin_type=True)
    return _DOMAIN + packed


def signed(swarm: str, epoch: int, sign: Callable[[bytes], bytes]) -> Beacon:
    """The founder's beacon of an epoch.

    Args:
        swarm: swarm id.
        epoch: >= 1.
        sign: Ed25519 of the founder.
    """
    return Beacon(epoch, sign(body(swarm, epoch)))


def value(beacon: Beacon) -> bytes:
    """32 bytes that look random to whoever lacks the beacon."""
    return blake2b(beacon.signature, digest_size=VALUE_BYTES).digest()


@dataclass(slots=True)
class Beacons:
    """The newest beacons a node knows.

    Args:
        swarm: swarm id.
        founder: who signs.
        verify: whether a peer signed a message.
        limit: most beacons kept; the oldest epoch goes first.
    """

    swarm: str
    founder: str
    verify: Verify
    limit: int = 8
    _held: dict[int, Beacon] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.limit <= AHEAD:
            raise ValueError(f"limit must be > {AHEAD}, got {self.limit}")

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._held

    def salt(self, salt: bytes, epoch: int) -> bytes:
        """The salt of an epoch's ranks; where its beacon is not known the one that anybody can work out.

        Args:
            salt: the swarm's.
            epoch: >= 0.
        """
        beacon = self._held.get(epoch)
        return salt_of(salt, epoch, b"" if beacon is None else value(beacon))

    def wants(self, beacon: Beacon, now: int) -> bool:
        """Whether a beacon could be news, or a lie: else its signature need not be looked at.

        Args:
            beacon: as received.
            now: the epoch in which we are.
        """
        if not 1 <= beacon.epoch <= now + AHEAD or self._held.get(beacon.epoch) == beacon:
            return False
        return beacon.epoch in self._held or len(self._held) < self.limit or beacon.epoch > min(self._held)

    def take(self, sender: str, beacon: Beacon, now: int) -> bool:
        """Keep a beacon. -> whether it is news, to be passed on

        The first one of an epoch stays, whatever else a founder may have signed.

        Args:
            sender: to blame.
            beacon: as received.
            now: as in `wants`.

        Raises:
            RemoteProtocolError: beacon_forged.
        """
        if not self.wants(beacon, now):
            return False
        if not self.verify(self.founder, beacon.signature, body(self.swarm, beacon.epoch)):
            raise RemoteProtocolError(sender, "beacon_forged")
        if beacon.epoch in self._held:
            return False
        if len(self._held) >= self.limit:
            del self._held[min(self._held)]
        self._held[beacon.epoch] = beacon
        return True

    def since(self, epoch: int) -> tuple[Beacon, ...]:
        """Those of an epoch and of the AHEAD after it, as far as they are known, in order."""
        return tuple(self._held[at] for at in range(epoch, epoch + AHEAD + 1) if at in self._held)
