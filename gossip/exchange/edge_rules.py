"""Protocol rules of an edge that every honest peer keeps under any loss, repetition and reordering."""

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.wire.schema import Ack, Busy, Check, Close, Closed, Exchange, Request, Response, Solicit

MAX_INC = 2**61  # half of what the wire carries: there is always a larger one to reset to


def check_message(
    message: Exchange, *, peer: str, initiator: bool, inc: int, next_seq: int, provable: int, closing: bool
) -> None:
    """Check a message against what this end of the edge has sent so far.

    `initiator` and `inc` are our role and incarnation, `next_seq` is the initiator's lowest number not yet used, `provable` the highest
    seq that can have been committed: what we committed (initiator) or answered (responder). `closing`: we have sent Close.

    Raises:
        RemoteProtocolError: incarnation_too_large, wrong_role, request_malformed, proof_of_nothing, answer_unasked, check_of_nothing,
            closed_unasked.
    """
    if message.inc > MAX_INC:
        raise RemoteProtocolError(peer, "incarnation_too_large")
    match message:
        case Request() | Ack() | Busy(seq=0):
            wrong = initiator
        case Response() | Solicit() | Busy():
            wrong = not initiator
        case _:
            wrong = False
    if wrong:
        raise RemoteProtocolError(peer, "wrong_role")
    if isinstance(message, Request) and (message.seq <= message.committed or message.theta == 0.0):
        raise RemoteProtocolError(peer, "request_malformed")
    if message.inc != inc:
        return
    match message:
        case Request(committed=proof) | Ack(seq=proof) | Close(committed=proof) | Closed(committed=proof):
            if proof > provable:
                raise RemoteProtocolError(peer, "proof_of_nothing")
        case Response(seq=seq) | Busy(seq=seq):
            if seq >= next_seq or (seq == 0 and isinstance(message, Response)):
                raise RemoteProtocolError(peer, "answer_unasked")
        case Check(seq=seq, lost=lost):
            if not 0 < seq < next_seq if initiator else (lost and seq > provable):
                raise RemoteProtocolError(peer, "check_of_nothing")
        case _:
            pass
    if isinstance(message, Closed) and not closing:
        raise RemoteProtocolError(peer, "closed_unasked")
