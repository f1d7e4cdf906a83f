"""Rules for the deadlines of a round's peers, in order of precedence: the first that applies decides.

A rule is a function `(peer, context) -> seconds | None` of facts alone; `gossip/exchange/link_deadlines.py` keeps the facts. All times are
seconds since exchanges of the round began. docs/explanation/waiting.md lists the rules with all other deadlines of a node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from starling.gossip.exchange.estimates import USUAL
from starling.gossip.exchange.lateness import MIN_DELAY

MAX_FACTOR = 2.0
"""Most that one peer is given, in what others are given: its exchanges may take twice as long as theirs, as behind a relay."""

Position = Literal["level", "behind", "ahead"]
"""This node's round against those that peers report: more of them than may lie are in a later one (behind), or no more than may lie have
come as far (ahead).
"""


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """Facts about an awaited peer."""

    usual_s: float
    """Usual time of other peers' answers."""
    silent: bool = False
    """It left a probe unanswered."""
    mute: bool = False
    """It sent nothing about exchanges while links in a row expired."""
    lately_gone: bool = False
    """It was silent a short time ago."""
    withdrawn: bool = False
    """Its extended deadline is withdrawn."""
    late: bool = False
    """Its last link expired."""
    owes: bool = False
    """It has not come for its expired link since."""
    needs_s: float | None = None
    """Time after which it came for a link that had expired; None: it never did."""
    quickest_s: float = 0.0
    """Its fastest recent answer; 0: none."""


@dataclass(frozen=True, slots=True)
class Context:
    """Facts about the round or visit."""

    learned_s: float
    """The learned deadline, or the time of payloads and engine calls where that is longer."""
    lag_s: float
    """Time of the round's local steps and one exchange."""
    unlinked_s: float
    """Additional time because this node had no link in the rounds before."""
    shortest_s: float
    """Lower bound of the learned deadline."""
    longest_s: float
    """Upper bound of the learned deadline, lengthened by the time of payloads and engine calls."""
    payload_s: float
    """Time of an exchange on the line, by recent payloads."""
    exchange_s: float
    """Time of an exchange where both ends are ready."""
    learned: bool = True
    """There are enough answers for the learned deadline."""
    position: Position = "level"
    out_of_phase: bool = False
    """Two more peers than may lie let their last link expire: this node is not where they are."""


Rule = Callable[[PeerFacts, Context], float | None]


def no_answer_to_probes(peer: PeerFacts, context: Context) -> float | None:
    """Give a peer that answers no probe the usual time: longer waits are for peers at work. Decision 0087."""
    if not peer.silent:
        return None
    return min(_least_s(peer, context) + _unlinked_s(peer, context), _timely_s(peer, context))


def says_nothing(peer: PeerFacts, context: Context) -> float | None:
    """Give a peer that answers probes and sends nothing about exchanges the time of two, at most the shortest deadline. Decision 0160.

    Also while this node is out of phase: others come too early or too late then, but they come. A peer at work sends something in the end,
    and has its full deadline from then on.
    """
    if not peer.mute:
        return None
    exchanges_s = USUAL * context.exchange_s or context.shortest_s
    return min(max(min(exchanges_s, context.shortest_s), context.payload_s), _timely_s(peer, context))


def deadline_withdrawn(peer: PeerFacts, context: Context) -> float | None:
    """Give a peer that delayed this node, or let links in a row expire, the time of its own exchanges. Decisions 0070, 0089, 0145.

    Not while this node is out of phase, as it is then the one that the others wait for in vain (0100). A peer from which the extended
    deadline is withdrawn is not given the time of rounds without a link (0114).
    """
    if not peer.withdrawn or context.out_of_phase:
        return None
    return min(_working_s(peer, context), _timely_s(peer, context))


def lately_gone(peer: PeerFacts, context: Context) -> float | None:
    """Give a peer that was gone a short time ago the time of its own exchanges: it will soon be gone again. Decision 0110."""
    if not peer.lately_gone or context.out_of_phase:
        return None
    return min(_working_s(peer, context) + context.unlinked_s, _timely_s(peer, context))


def others_ahead(peer: PeerFacts, context: Context) -> float | None:
    """Limit the wait to the shortest deadline and the time of a round while other peers are in later rounds. Decisions 0096, 0145, 0160.

    A peer one round behind answers within that time, and peers that already wait for this node do so for as long. Deadlines differ between
    nodes: without this bound a node with a longer one would stay out of phase for many rounds. A node with few answers does not know what
    is usual; that others have gone on says that it is less than the upper bound.
    """
    if context.position != "behind":
        return None
    working_s = _working_s(peer, context) if context.learned else context.payload_s
    longest_s = max(working_s, context.shortest_s) + context.lag_s + _unlinked_s(peer, context)
    return min(longest_s, _timely_s(peer, context))


def others_behind(peer: PeerFacts, context: Context) -> float | None:
    """Wait as long as any exchange may take while this node is out of phase and ahead of all others. Decision 0100."""
    if not context.out_of_phase or context.position != "ahead":
        return None
    return max(context.longest_s, _extended_s(peer, context))


def comes_late(peer: PeerFacts, context: Context) -> float | None:
    """Give a peer that came after it had been given up the time that it needed, at most MAX_FACTOR times others'. Decision 0107."""
    if peer.needs_s is None:
        return None
    return max(_extended_s(peer, context), _timely_s(peer, context))


def late_last_time(peer: PeerFacts, context: Context) -> float | None:
    """Give a peer that was late the learned deadline and the time of one round. Decisions 0010, 0145.

    While there are too few answers for one, a peer that has not come for its last link since is given the shortest.

    Less than a peer in time: a node that waits for a straggler is still waited for itself. With equal deadlines one straggler would
    desynchronise the whole swarm. Not while this node is out of phase (0100).
    """
    if not peer.late or context.out_of_phase:
        return None
    learned_s = context.shortest_s if peer.owes and not context.learned else context.learned_s
    return learned_s + context.lag_s + context.unlinked_s


def in_time(_peer: PeerFacts, context: Context) -> float:
    """Give a peer that was in time the learned deadline and the time of two rounds: it may wait for another. Decisions 0010, 0100."""
    return context.learned_s + 2.0 * context.lag_s + context.unlinked_s


RULES: tuple[Rule, ...] = (
    no_answer_to_probes,
    says_nothing,
    deadline_withdrawn,
    lately_gone,
    others_ahead,
    others_behind,
    comes_late,
    late_last_time,
    in_time,
)
"""Rules in order of precedence; the last always gives a time."""


def seconds_for(peer: PeerFacts, context: Context) -> float:
    """Return how long to wait for a peer, by the first rule that applies."""
    return next(seconds for rule in RULES if (seconds := rule(peer, context)) is not None)


def _least_s(peer: PeerFacts, context: Context) -> float:
    """Return the least time given to any peer: the usual one, and that of payloads, as an answer may wait for one to be sent."""
    return max(peer.usual_s, MIN_DELAY / 2.0 * context.lag_s, context.payload_s)


def _working_s(peer: PeerFacts, context: Context) -> float:
    """Return the least time given to a peer at work: also that of its own exchanges, at most MAX_FACTOR times others'."""
    return max(
        _least_s(peer, context),
        USUAL * min(peer.quickest_s, MAX_FACTOR * context.exchange_s),
        min(_needed_s(peer, context), MAX_FACTOR * peer.usual_s),
    )


def _needed_s(peer: PeerFacts, context: Context) -> float:
    return 0.0 if peer.needs_s is None else peer.needs_s + context.lag_s


def _extended_s(peer: PeerFacts, context: Context) -> float:
    return min(_needed_s(peer, context), MAX_FACTOR * in_time(peer, context))


def _timely_s(peer: PeerFacts, context: Context) -> float:
    """Return the time given to a peer of which only the last link is known; no shortening rule gives more."""
    late_s = late_last_time(peer, context)
    return in_time(peer, context) if late_s is None else late_s


def _unlinked_s(peer: PeerFacts, context: Context) -> float:
    """Return the time added for rounds without a link; none without an extended deadline. Decision 0114."""
    return 0.0 if peer.withdrawn else context.unlinked_s
