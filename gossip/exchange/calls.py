"""Calls to the engine and their replies, as the exchange state machines emit them and as they cross the engine's pipe.

Every call has exactly one reply. `starling.node.rpc.calls` adds the calls of training and state to these. Encoded as msgpack arrays
between two processes of one node; peers never see them.
"""

import msgspec


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Base of all calls and replies."""


class TransactionCall(Call, frozen=True):
    """Base of calls about transaction `seq` with `peer` in incarnation `inc` of the edge; the numbers seed the support, with the swarm's
    seed.
    """

    peer: str
    inc: int
    seq: int


class Offer(TransactionCall, frozen=True, tag="offer"):
    """Initiator: encode our values. -> Offered"""

    round: int
    theta: float  # mixing weight of the link
    budget_bytes: int = 0  # most bytes that both payloads together may have; 0 = no limit
    give: float | None = None  # mixing weight the peer gives to our values, where links have a direction; else theta
    take: float | None = None  # mixing weight we give to the peer's values, likewise
    members: int = 1  # number of members that exchange with each other, as far as known


class Offered(Call, frozen=True, tag="offered"):
    """The request's payload, the gain that both ends will use, and the share in [0, 1] of our correction that local steps confirmed."""

    payload: bytes
    gain: float
    borne: float = 1.0
    reference: float = 0.0  # usual length of differences at our end, >= 0 (`starling.robust.distances`); 0: unknown


class Answer(TransactionCall, frozen=True, tag="answer"):
    """Responder: compute and encode our part, and store it as pending; weights as in Offer. -> Answered, or Refused for a bad payload"""

    round: int
    theta: float
    gain: float
    payload: bytes
    give: float | None = None
    take: float | None = None
    borne: float = 1.0  # the initiator's, as in Offered
    members: int = 1  # as in Offer
    reference: float = 0.0  # the initiator's, as in Offered


class Answered(Call, frozen=True, tag="answered"):
    """The response's payload, and the share of the difference left by clipping, in [0, 1]; None where nothing is clipped."""

    payload: bytes
    clip: float | None = None
    borne: float = 1.0  # the responder's, as in Offered
    share: float = 1.0  # factor of the gain, in [0, 1]: the smaller of both ends' shares


class Apply(TransactionCall, frozen=True, tag="apply"):
    """Initiator: decode the response and apply +v: the transaction's commit point. -> Done, or Refused (nothing applied)"""

    payload: bytes
    borne: float = 1.0  # the responder's, as in Offered
    share: float = 1.0  # as in Answered
    clip: float = 1.0  # share of the difference left by the responder's clip, in [0, 1]


class Commit(TransactionCall, frozen=True, tag="commit"):
    """Responder: apply −v of the pending transaction. -> Done; anything else resets the edge"""


class Drop(TransactionCall, frozen=True, tag="drop"):
    """Either end: discard the offer or pending answer, if any, without applying. -> Done"""


class Settle(Call, frozen=True, tag="settle"):
    """The edge was closed in order: its flow stays in c, revocable for a while. -> Done; anything else resets the edge"""

    peer: str


class Revoke(Call, frozen=True, tag="revoke"):
    """Delete the flow of a peer that left, was banned or restarted, settled flows too, and anything pending. -> Done"""

    peer: str


class Publish(Call, frozen=True, tag="publish"):
    """Encode the frozen vector of `round` for all who request it. -> Published, or Refused where our own numbers cannot be sent"""

    round: int


class Published(Call, frozen=True, tag="published"):
    """The payload and its digest (`starling.gossip.exchange.attestation`)."""

    payload: bytes
    digest: bytes
    longest: int = 0  # length of the longest payload that a peer can have published; 0: the same as ours


class VerifyUpdate(Call, frozen=True, tag="verify"):
    """Decode a peer's published vector and store it until Mix. -> Done, or Refused if the payload is bad or does not fit the digest"""

    peer: str
    digest: bytes
    payload: bytes


class VerifyEarlier(Call, frozen=True, tag="verify_earlier"):
    """Decode a peer's message of a round that is mixed, and add it to that round's sum at the next Mix. -> Done, or Refused

    Refused as "peer" where VerifyUpdate is, as "state" where that message is not missing, or nothing is added to that round any more.
    """

    peer: str
    digest: bytes
    payload: bytes
    round: int


class Far(msgspec.Struct, frozen=True, array_like=True):
    """The reason why a peer's model counts against it (`starling.robust.distances`)."""

    distance: float  # of the peer's model from ours
    reference: float  # usual distance, which this one exceeds by far
    score: float  # with this
    refused: int  # number of following rounds in which nothing is taken from it; 0: none
    progress: float = 1.0  # share of our way that the peer's model has made
    least: float = 0.0  # of the other peers' and 1, of which this one is less than half; 0: what counts is another reason
    ratio: float = 1.0  # loss of the model that the peer had last on our data, over that of ours
    largest: float = 0.0  # of the other peers' ratios, if what counts is that this one is more by a quarter; 0: it is another reason

    @property
    def is_fault(self) -> bool:
        """Return whether the strike is a fault of the peer: one for losses, of a single batch, is none unless the peer is refused."""
        return not self.largest or self.refused > 0

    @property
    def why(self) -> str:
        """Return the reason, of "its model …"."""
        if self.largest:
            return f"had {self.ratio:.3g} times the loss of ours on our data, those of other peers at most {self.largest:.3g} times"
        if self.least:
            return f"had made {self.progress:.0%} of the way that ours has, those of other peers at least {self.least:.0%}"
        return f"was {self.distance:.3g} from ours, those of other peers about {self.reference:.3g}"


class Divergence(msgspec.Struct, frozen=True, array_like=True):
    """Outer parameters that a node needs from others, as its own differ (`starling.gossip.mix.common_outer`)."""

    outer: tuple[tuple[bytes, tuple[str, ...]], ...]  # (digest, peers that have them)
    voices: int  # how many members' are needed, ours included


class Done(Call, frozen=True, tag="done"):
    """The call is done."""

    clipped: bool = False  # of Apply and Commit: whether the difference reached the clip's length
    clipped_or_excluded: tuple[str, ...] | None = None
    """Of Mix where vectors are gathered: clipped or excluded peers; None where the rule does not say."""
    dominated: bool = False
    """Of Revoke: whether the remaining flows compensated for the revoked one, so that they must be deleted too."""
    clip: float | None = None
    """Of Apply and Commit: 1 where the difference was not clipped; None where it may have been, or nothing is clipped here."""
    diverged: Divergence | None = None
    """Of Mix where nodes broadcast: what is needed from peers whose outer parameters differ from ours; None: nothing."""
    far: Far | None = None
    """Of Apply and Commit: set where the peer's model was too far from ours."""
    distance: float | None = None
    """Of Mix: the consensus distance as this node sees it (`starling.node.engine.consensus`), >= 0; None: no exchange says."""


class Refused(Call, frozen=True, tag="refused"):
    """The call was refused and nothing changed."""

    kind: str
    """One of "config" (the person's input), "peer" (its bytes are bad), "disk" (could not write), "state" (not now),
    "unmeasured" (an evaluation that nobody does)."""
    reason: str  # for "peer" a snake_case word, else one line for people


EdgeCall = Offer | Answer | Apply | Commit | Drop | Settle | Revoke
"""Calls of one edge; they are carried out one after the other, in the order given."""
ExchangeCall = EdgeCall | VerifyUpdate | VerifyEarlier
