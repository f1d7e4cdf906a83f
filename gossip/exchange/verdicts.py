"""What a pace says to a peer that wants an exchange. Shared by rounds and slots."""

from __future__ import annotations

from dataclasses import dataclass

from starling.gossip.exchange.commands import Refusal
from starling.gossip.wire.schema import Poke, Request

Wish = Request | Poke

MAX_SERVED = 4
"""Exchanges one peer gets in a round, or all peers in a slot: encoding costs the engine time."""


@dataclass(frozen=True, slots=True)
class Now:
    """Go ahead."""


@dataclass(frozen=True, slots=True)
class Park:
    """It is kept, and decided when our round opens."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer Busy."""

    reason: Refusal


Admission = Now | Park | Refuse


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on a wish that was parked."""

    peer: str
    wish: Wish
    admission: Now | Refuse
