"""The last rounds of messages to all, whose sums may still change: a message that comes late is added where it belongs.

The sums after it are computed again in the same order, so all who have the same messages have the same outer parameters to the bit,
whenever the messages came.

Shapes: d parameters, n members, D numbers of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from starling.gossip.errors import LocalProtocolError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.mix.broadcast_codec import anchor_digest
from starling.gossip.replica import Replica


@dataclass(slots=True)
class _Round:
    number: int
    outer: Tensor  # (d,) parameters before it
    digest: bytes
    order: Sequence[str]  # members whose messages are expected
    payloads: dict[str, bytes]  # received messages, as sent
    changed: bool = False

    def lacks(self, author: str) -> bool:
        """Return whether the message of that member is missing."""
        return author in self.order and author not in self.payloads


class PastRounds:
    """The last `depth` rounds of a replica, with its outer parameters before each. `decode` gives (D,) of a payload."""

    def __init__(self, replica: Replica, decode: Callable[[bytes], Tensor], depth: int) -> None:
        self._replica, self._decode, self._depth = replica, decode, depth
        self._rounds: list[_Round] = []
        self._last: tuple[Tensor, bytes] | None = None  # the outer parameters after the last round, and their digest

    @property
    def closed(self) -> bytes:
        """Digest of the newest outer parameters that no message changes any more."""
        _, newest = self._now()
        return self._rounds[0].digest if self._rounds else newest

    def mixed(self, number: int, order: Sequence[str], payloads: Mapping[str, bytes]) -> None:
        """Note the round that is about to be mixed: whose messages there should be, and which came; the oldest round is closed."""
        outer, digest = self._now()
        self._rounds.append(_Round(number, outer, digest, order, dict(payloads)))
        del self._rounds[: -self._depth]

    def ended(self) -> None:
        """Record the outer parameters after a round."""
        self._last = self._outer, anchor_digest(self._outer)

    def add(self, number: int, author: str, payload: bytes) -> None:
        """Take a late message, for the next `repair`.

        Raises ValueError: it cannot be decoded. LocalProtocolError: nothing of this author is missing in that round, or it is closed.
        """
        self._now()
        for it in self._rounds:
            if it.number == number and it.lacks(author):
                self._decode(payload)
                it.payloads[author], it.changed = payload, True
                return
        raise LocalProtocolError(f"nothing of this peer is missing in round {number}")

    def repair(self) -> None:
        """Recompute the outer parameters after rounds with late messages, and continue from the last."""
        outer: Tensor | None = None  # outer parameters after the previous round, if they have changed since
        for it in self._rounds:
            if outer is not None:
                it.outer, it.digest = outer, anchor_digest(outer)
            if it.changed or outer is not None:
                outer, it.changed = self._summed(it), False
        if outer is not None:
            self._replica.reanchor(outer)
            self.ended()

    def _summed(self, it: _Round) -> Tensor:
        """Return (d,) after a round."""
        form = self._replica.form
        messages = torch.zeros(len(it.order), len(form), dtype=form.dtype, device=form.device)
        present = torch.zeros(len(it.order), dtype=torch.bool, device=form.device)
        for place, author in enumerate(it.order):
            if author in it.payloads:
                messages[place], present[place] = self._decode(it.payloads[author]).to(form.device), True
        return self._replica.again(it.outer, messages, present, it.order, it.number)

    @property
    def _outer(self) -> Tensor:
        return self._replica.settled

    def _now(self) -> tuple[Tensor, bytes]:
        """Return the outer parameters and their digest. If they are not those after the last round, that and those before it are void."""
        if self._last is None or self._last[0] is not self._outer:
            self._rounds.clear()
            self.ended()
        assert self._last is not None
        return self._last
