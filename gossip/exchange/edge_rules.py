"""Rules that every honest peer's messages on an edge keep under any loss, repetition and reordering, by kind of message.

Each rule takes a message and the end that received it, and returns in one snake_case word how the message breaks it, or "":
incarnation_too_large, wrong_role, request_malformed, proof_of_nothing, answer_unasked, check_of_nothing, closed_unasked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from starling.gossip.wire.schema import Ack, Busy, Check, Close, Closed, PairwiseMessage, Request, Reset, Response, Solicit

MAX_INC = 2**61  # half of the wire's range, so that a reset always has a larger number


@dataclass(frozen=True, slots=True)
class End:
    """The attributes of one end of an edge that the rules read."""

    initiator: bool
    inc: int
    next_seq: int  # lowest sequence number that the initiator has not used
    provable: int  # highest sequence number that can have been committed: ours as initiator, or the last answered
    closing: bool  # Close was sent

    def numbers(self, inc: int, *, sender: bool | None = None) -> str:
        """Check an incarnation and a role. `sender`: whether it is the initiator that sends this; None: either end does."""
        if inc > MAX_INC:
            return "incarnation_too_large"
        return "wrong_role" if sender is self.initiator else ""

    def proof(self, inc: int, seq: int) -> str:
        """Check the number up to which the peer says that it committed."""
        return "proof_of_nothing" if inc == self.inc and seq > self.provable else ""


def _request(it: Request, end: End) -> str:
    if broken := end.numbers(it.inc, sender=True):
        return broken
    if it.seq <= it.committed or it.theta == 0.0:
        return "request_malformed"
    return end.proof(it.inc, it.committed)


def _response(it: Response, end: End) -> str:
    if broken := end.numbers(it.inc, sender=False):
        return broken
    return "answer_unasked" if it.inc == end.inc and not 0 < it.seq < end.next_seq else ""


def _ack(it: Ack, end: End) -> str:
    return end.numbers(it.inc, sender=True) or end.proof(it.inc, it.seq)


def _busy(it: Busy, end: End) -> str:
    if broken := end.numbers(it.inc, sender=it.seq == 0):
        return broken
    return "answer_unasked" if it.inc == end.inc and it.seq >= end.next_seq else ""


def _solicit(it: Solicit, end: End) -> str:
    return end.numbers(it.inc, sender=False)


def _reset(it: Reset, end: End) -> str:
    return end.numbers(it.inc)


def _close(it: Close, end: End) -> str:
    return end.numbers(it.inc) or end.proof(it.inc, it.committed)


def _closed(it: Closed, end: End) -> str:
    if broken := end.numbers(it.inc) or end.proof(it.inc, it.committed):
        return broken
    return "closed_unasked" if it.inc == end.inc and not end.closing else ""


def _check(it: Check, end: End) -> str:
    if broken := end.numbers(it.inc):
        return broken
    unknown = not 0 < it.seq < end.next_seq if end.initiator else it.lost and it.seq > end.provable
    return "check_of_nothing" if it.inc == end.inc and unknown else ""


BROKEN: Mapping[type[PairwiseMessage], Callable[[Any, End], str]] = MappingProxyType(
    {
        Request: _request,
        Response: _response,
        Ack: _ack,
        Busy: _busy,
        Solicit: _solicit,
        Reset: _reset,
        Close: _close,
        Closed: _closed,
        Check: _check,
    }
)
"""Returns how a message breaks a rule; "" if it breaks none."""
