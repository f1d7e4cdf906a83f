"""Who may be a member, as the membership core asks it. Rules and keys lie outside: `starling.node.admission`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from starling.gossip.wire.schema import Record, Revocation

NOTHING_REVOKED = bytes(16)


class Gate(Protocol):
    """Judges records whose signature fits."""

    @property
    def closed(self) -> bool:
        """Whether anything is asked of members; then strangers are told nothing."""
        ...

    @property
    def revoked(self) -> Sequence[Revocation]:
        """All revocations known, in an order that is the same for everybody."""
        ...

    @property
    def digest(self) -> bytes:
        """Of `revoked`."""
        ...

    def fault(self, record: Record) -> str:
        """Why no honest member can have told this record, in snake_case; "" if one can."""
        ...

    def admits(self, record: Record) -> bool:
        """Whether the peer may be a member now. A record that is the first of its kind may change the answer about others."""
        ...

    def answer(self, record: Record) -> Revocation | Record | None:
        """To one that is not admitted, what is worth telling whoever believes in it: its revocation, or the record that goes before it."""
        ...

    def revoke(self, revocations: Sequence[Revocation]) -> list[Revocation]:
        """Take in revocations -> those that are new.

        Raises:
            ValueError: in snake_case, why one of them is none; then nothing was taken in.
        """
        ...

    def changed(self) -> bool:
        """Whether an answer of `admits` may have changed since this was asked last."""
        ...


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Everybody may be a member."""

    closed: bool = False
    revoked: tuple[Revocation, ...] = ()
    digest: bytes = NOTHING_REVOKED

    def fault(self, record: Record) -> str:
        """Nothing is wrong."""
        return ""

    def admits(self, record: Record) -> bool:
        """Always."""
        return True

    def answer(self, record: Record) -> None:
        """Nothing."""

    def revoke(self, revocations: Sequence[Revocation]) -> list[Revocation]:
        """Nobody was invited, so nothing can be revoked.

        Raises:
            ValueError: there is one.
        """
        if revocations:
            raise ValueError("nothing_to_revoke")
        return []

    def changed(self) -> bool:
        """Never."""
        return False
