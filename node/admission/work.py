"""Proof of work: a nonce whose argon2id digest begins with so many zero bits.

It makes identities cost something; it does not stop an attacker with many processors.

    ticket (epoch, nonce) of a peer is good if argon2id(swarm | epoch | peer | nonce) begins with `bits` zero bits

A ticket is for one peer, one swarm and one epoch of `epoch_s` of unix time. It is good from half an epoch before its own (clocks differ)
to the middle of the next, so a member has half an epoch for the next one. Memory per try keeps graphics cards from being
a thousand times faster than the rest. Checking costs one try, where finding costs 2**bits of them on average.

Its input is predictable, so tickets of later epochs can be made in advance, at the same cost each.

Source: Biryukov, Dinu, Khovratovich 2016 (argon2, RFC 9106); hashcash, Back 2002. Parameters: one pass, one lane.
"""

from dataclasses import dataclass

from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from starling.node.admission.credential import Ticket

_SALT = b"starling/work/1\0"
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Puzzle:
    """The proof of work that a swarm requires."""

    swarm: str
    bits: int  # zero bits, 1 to 24
    memory_kib: int  # memory of one evaluation, >= 8
    epoch_s: float

    def epoch(self, unix_s: float) -> int:
        """Return the epoch of a moment."""
        return int(unix_s // self.epoch_s)

    def begins_s(self, epoch: int) -> float:
        """Return the unix time at which an epoch begins."""
        return epoch * self.epoch_s

    def is_current(self, ticket: Ticket, unix_s: float) -> bool:
        """Return whether a valid ticket counts now."""
        return -0.5 <= unix_s / self.epoch_s - ticket.epoch < 1.5

    def digest(self, peer: str, ticket: Ticket) -> bytes:
        """Evaluate once; return 32 bytes."""
        password = f"{self.swarm}|{ticket.epoch}|{peer}|{ticket.nonce}".encode()
        function = Argon2id(salt=_SALT, length=_DIGEST_BYTES, iterations=1, lanes=1, memory_cost=self.memory_kib)
        return function.derive(password)

    def solved_by(self, digest: bytes) -> bool:
        """Return whether a digest begins with enough zero bits."""
        return int.from_bytes(digest, "big") >> (8 * len(digest) - self.bits) == 0

    def is_solved(self, peer: str, ticket: Ticket) -> bool:
        """Return whether a ticket is valid, by one evaluation."""
        return self.solved_by(self.digest(peer, ticket))


def search(puzzle: Puzzle, peer: str, epoch: int, nonces: range) -> Ticket | None:
    """Return the first good ticket of a peer and an epoch among some nonces, at one evaluation each; None if there is none."""
    tickets = (Ticket(epoch, nonce) for nonce in nonces)
    return next((ticket for ticket in tickets if puzzle.is_solved(peer, ticket)), None)
