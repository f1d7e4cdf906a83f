"""Interface of the membership core to admission control, which `starling.node.admission` implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starling.gossip.wire.schema import Record, Revocation


class Gate(Protocol):
    """Decides on the admission of peers by their records, whose signatures are already verified."""

    @property
    def closed(self) -> bool:
        """Tell if members need a credential; if so, non-members are sent no records."""

    @property
    def revoked(self) -> Sequence[Revocation]:
        """Return all known revocations, in the same order on every node."""

    @property
    def digest(self) -> bytes:
        """Return the digest of `revoked`, 16 bytes."""

    def fault(self, record: Record) -> str:
        """Return the fault of a record that no honest member forwards, in snake_case; "" if it has none."""

    def admits(self, record: Record) -> bool:
        """Tell if the peer may be a member now. A second valid record with one invitation changes the answer for the first."""

    def answer(self, record: Record) -> Revocation | Record | None:
        """Proof against a rejected peer for those that list it: its revocation, or another record with the same invitation."""

    def revoke(self, revocations: Sequence[Revocation]) -> list[Revocation]:
        """Store revocations -> those that are new. Raises ValueError: one is invalid, with the reason in snake_case; none was stored."""

    def changed(self) -> bool:
        """Tell if a result of `admits` may have changed since the last call of this method."""
