"""The last rounds of messages to all, whose sums may still change: a message that comes late is added where it belongs.

The sums after it are computed again in the same order, so all who have the same messages have the same outer parameters to the bit,
whenever the messages came. Outer parameters of other members (`starling.gossip.mix.common_outer`) are put in place of ours before the
oldest of these rounds, and the sums after it are computed again likewise.

Shapes: d parameters, n members, D numbers of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from starling.gossip.errors import LocalProtocolError
from starling.gossip.lazy_torch import Tensor, torch
from starling.gossip.limits import keep
from starling.gossip.mix.broadcast_codec import anchor_digest
from starling.gossip.mix.common_outer import GIVEN, UNKNOWN
from starling.gossip.replica import Replica


@dataclass(slots=True, eq=False)
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
        self._closed: _Round | None = None  # the round before those, whose outer parameters are given to others
        self._last: tuple[Tensor, bytes] | None = None  # the outer parameters after the last round, and their digest

    def closed(self, number: int) -> bytes:
        """Return the digest of the outer parameters before round `number` − depth, which no message changes any more; of the first round's
        if that is later. UNKNOWN: not all rounds since then were mixed here.
        """
        _, newest = self._now()
        first = max(0, number - self._depth)
        if [it.number for it in self._rounds] != list(range(first, number)):
            return UNKNOWN
        return self._rounds[0].digest if self._rounds else newest

    def publish(self, number: int) -> bytes:
        """Add all that came late, and return `closed`; whoever asks gets these outer parameters until the round is mixed."""
        self.repair()
        digest = self.closed(number)
        if digest != UNKNOWN:
            keep(self._replica.given, digest, self._rounds[0].outer if self._rounds else self._outer, GIVEN)
        return digest

    def mixed(self, number: int, order: Sequence[str], payloads: Mapping[str, bytes], *, differ: bool = False) -> None:
        """Note the round that is about to be mixed: whose messages there should be, and which came; the oldest round is closed.

        `differ`: members' closed outer parameters differ. Then what was published can still be asked for, and replaced.
        """
        outer, digest = self._now()
        if self._rounds and self._rounds[-1].number != number - 1:
            self._rounds.clear()  # the sums of the rounds between are not known here
        self._rounds.append(_Round(number, outer, digest, order, dict(payloads)))
        full = len(self._rounds) > self._depth
        self._closed = self._rounds.pop(0) if full else self._rounds[0]
        if not differ:
            self._closed = None
            self._replica.given.clear()

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

    def replace(self, outer: Tensor) -> None:
        """Continue from other outer parameters (d,) than those that were published for the last round, from the next `repair` on.

        Raises LocalProtocolError: those are not known any more.
        """
        self._now()
        if self._closed is None:
            raise LocalProtocolError("outer parameters are replaced only after a round in which members' differ")
        self._closed.outer, self._closed.digest, self._closed.changed = outer, anchor_digest(outer), True
        if self._closed not in self._rounds:
            self._rounds.insert(0, self._closed)
        self._closed = None

    def repair(self) -> None:
        """Recompute the outer parameters after rounds with late messages, or replaced ones before them, and continue from the last."""
        self._now()
        outer: Tensor | None = None  # outer parameters after the previous round, if they have changed since
        for it in self._rounds:
            if outer is not None:
                it.outer, it.digest = outer, anchor_digest(outer)
            if it.changed or outer is not None:
                outer, it.changed = self._summed(it), False
        del self._rounds[: -self._depth]
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
            self._replica.given.clear()
            self._closed = None
            self.ended()
        assert self._last is not None
        return self._last
