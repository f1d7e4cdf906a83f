"""The peer policy: faults, exchanges and the owner's decisions change a peer's reputation, whose verdict is enforced.

    quarantine, ban    connections are closed and refused until then; the peer's flow is deleted, settled flow as well
    unban, trust       the peer may connect again; its earlier contribution stays deleted

Bans and trust are stored for the next run and are in force from its first moment, so a restart on either side undoes nothing. A ban is of
the peer's invitation as well as of its key: keys cost nothing, and after a restart nobody remembers who used an invitation before. A banned
peer stays in the member list, from which all members compute the same overlay; its links are void at once.
"""

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import trio

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.exchange.commands import Outcome
from starling.gossip.limits import keep
from starling.gossip.quorum import Electorate
from starling.node.daemon.events import Events
from starling.node.identity import public_key_of
from starling.node.interfaces import Level
from starling.robust.reputation import Decision, Reputation, Standing, Verdict

MAX_WHY = 200
SHOWN = 7  # last characters of a peer id that lists show


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Carries out verdicts, and gives facts about members; the defaults hold until the network is open and members are known."""

    refuse: Callable[[str, float], object] = lambda _peer, _until: None
    """Closes connections of a peer and refuses it until a time on trio's clock; -inf admits it again."""
    cut: Callable[[str], object] = lambda _peer: None  # deletes what a peer contributed; returns at once
    inviters_of: Callable[[str], tuple[str, ...]] = lambda _peer: ()  # returns the peers that answer for a peer, its own inviter last
    invitations_of: Callable[[str], tuple[str, ...]] = lambda _peer: ()  # returns keys that its invitations were given to, as peer ids
    known: Callable[[], Collection[str]] = tuple  # returns peer ids that may be abbreviated in the owner's commands


class PeerPolicy:
    """Keeps the reputation of one node's peers and enforces it; the `Reporter` of the node's services.

    `keep` is called with the bans and trust to store for the next run, times in unix seconds, as `unix_time` has them.
    """

    def __init__(self, me: str, events: Events, unix_time: Callable[[], float], keep: Callable[[tuple[Decision, ...]], object]) -> None:
        self.reputation = Reputation()
        self._electorate = Electorate()
        self._me = me
        self._events = events
        self._unix_time = unix_time
        self._keep = keep
        self._node = Enforcement()
        self._cannot_keep = False
        self._users: dict[str, str] = {}  # the banned peer that used an invitation

    def resume(self, decisions: Collection[Decision]) -> None:
        """Restore the decisions of an earlier run, before the owner makes new ones."""
        now, since = trio.current_time(), trio.current_time() - self._unix_time()
        self._users.update((it.invitation, it.peer) for it in decisions if it.invitation)
        self.reputation.resume((replace(it, until=it.until + since) for it in decisions), now)

    def enforce(self, node: Enforcement) -> None:
        """Let `node` carry out verdicts from now on, first the bans already in force."""
        self._node = node
        now = trio.current_time()
        for decision in self.reputation.decisions(now):
            verdict = self.reputation.verdict(decision.peer, now)
            if verdict.state == "ban":
                self._node.refuse(decision.peer, verdict.until)

    def standing(self, peer: str) -> Standing:
        """Return score, verdict and figures of a peer at this moment."""
        return self.reputation.standing(peer, trio.current_time())

    def allows(self, peer: str) -> bool:
        """Return whether a peer is neither quarantined nor banned, and none whose ban holds for it is banned."""
        now = trio.current_time()
        others = (self.reputation.verdict(each, now).state != "ban" for each in self._answering_for(peer))
        return self.reputation.verdict(peer, now).state == "ok" and all(others)

    def event(self, name: str, text: str, *, level: Level = "info", **fields: object) -> None:
        """Add an event."""
        self._events.event(name, text, level=level, **fields)

    def fault(self, peer: str, reason: str) -> None:
        """Count a peer's protocol fault; penalise it, and to a lesser degree its inviter."""
        self._events.fault(peer, reason)
        now, reputation, inviters = trio.current_time(), self.reputation, self._node.inviters_of(peer)
        self._carry_out(peer, reputation.verdict(peer, now), reputation.fault(peer, reason, now))
        if inviters and inviters[-1] != self._me:
            inviter = inviters[-1]
            self._carry_out(inviter, reputation.verdict(inviter, now), reputation.invited(inviter, peer, reason, now))

    def joined(self, peer: str) -> None:
        """Refuse a new member whose inviter is banned, or a user of its invitation; learn the invitation of one that is banned itself."""
        now = trio.current_time()
        if self.reputation.verdict(peer, now).state == "ban" and self._learn_invitation(peer):
            self._keep_all()
        for each in self._answering_for(peer):
            verdict = self.reputation.verdict(each, now)
            if verdict.state == "ban":
                self._node.refuse(peer, verdict.until)

    def noted(self, outcomes: Mapping[str, Outcome], clipped: Collection[str] | None = None) -> None:
        """Record how a round's exchanges ended, by peer, and whose update the rule clipped or excluded; None where unknown."""
        now = trio.current_time()
        for peer, outcome in sorted(outcomes.items()):
            if not self.allows(peer):
                continue  # the peer is refused, so its silence is no fault
            if outcome == "committed":
                self._electorate.exchanged(peer)
                self.reputation.exchanged(peer, now, clipped=None if clipped is None else peer in clipped)
            elif outcome == "timeout":
                self.reputation.missed(peer, now)

    def has_vote(self, peer: str) -> bool:
        """Return whether a peer's vote counts: it takes part, and is not refused."""
        return self._electorate.has_vote(peer) and self.allows(peer)

    def electors(self) -> tuple[str, ...]:
        """Return the peers whose votes count."""
        return tuple(filter(self.allows, self._electorate.electors))

    def _carry_out(self, peer: str, before: Verdict, verdict: Verdict) -> None:
        if verdict in (before, Verdict("ok", -math.inf)):
            return
        for_s, cause = verdict.until - trio.current_time(), self.standing(peer).why
        why = f", {cause}" if cause else ""
        text = f"{peer} is shut out for {for_s:.0f} s ({verdict.state}{why})"
        self._events.event(f"peer_{verdict.state}", text, level="warning", peer=peer)
        self._shut_out(peer, verdict)

    def _shut_out(self, peer: str, verdict: Verdict) -> None:
        if verdict.state == "ban":
            self._learn_invitation(peer)
        guests = self._guests_of(peer) if verdict.state == "ban" else []
        for each in (peer, *guests):
            self._node.refuse(each, verdict.until)
            self._node.cut(each)
        if verdict.state == "ban":
            self._keep_all()

    def _guests_of(self, host: str) -> list[str]:
        """Return the members that a peer answers for, this node aside."""
        return [peer for peer in self._node.known() if host in self._answering_for(peer) and peer not in {host, self._me}]

    def _learn_invitation(self, banned: str) -> bool:
        """Remember whose ban the invitation of a banned peer falls under -> whether that was new."""
        own = self._node.invitations_of(banned)[-1:]
        new = any(self._users.get(each) != banned for each in own)
        for invitation in own:
            keep(self._users, invitation, banned, self.reputation.remembered)
        return new

    def _answering_for(self, peer: str) -> tuple[str, ...]:
        """Return the peers whose ban is one of this peer: those that invited it, and banned ones that used an invitation it came by.

        A banned peer could else go on under a key of its own making, that it invites or that takes up its invitation.
        """
        users = (self._users.get(each) for each in self._node.invitations_of(peer))
        return (*self._node.inviters_of(peer), *(user for user in users if user is not None))

    def ban(self, given: str, for_s: float = math.inf, why: str = "") -> str:
        """Ban a peer for `for_s` > 0 seconds, with a reason to show -> its id.

        Raises ConfigError: `given`, a peer id or its beginning or end, is no such peer, several, or this node itself.
        """
        peer, now = self._named(given), trio.current_time()
        verdict = self.reputation.shut_out(peer, now, now + for_s, why[:MAX_WHY])
        how_long = f"for {for_s:.0f} s" if math.isfinite(for_s) else "until it is unbanned"
        text = f"{peer} is banned by the owner {how_long}" + (f": {why[:MAX_WHY]}" if why else "")
        self._events.event("peer_ban", text, level="warning", peer=peer)
        self._shut_out(peer, verdict)
        return peer

    def unban(self, given: str) -> str:
        """Lift a peer's ban, quarantine or trust -> its id.

        Raises ConfigError: no such peer, or several; GossipError: there is nothing to undo.
        """
        peer = self._named(given)
        was_out = not self.allows(peer)
        if not self.reputation.forgive(peer):
            raise GossipError(f"unban: {peer} is neither banned nor trusted; `starling peers` shows every peer's standing")
        self._let_in(peer, "peer_unban", f"{peer} is treated like any other peer again", was_out=was_out)
        return peer

    def trust(self, given: str) -> str:
        """Exempt a peer from automatic bans and quarantines -> its id. Raises ConfigError: no such peer, several, or this node itself."""
        peer = self._named(given)
        was_out = not self.allows(peer)
        self.reputation.trust(peer, trio.current_time())
        self._let_in(peer, "peer_trust", f"{peer} is trusted: this node never bans it by itself", was_out=was_out)
        return peer

    def _let_in(self, peer: str, name: str, text: str, *, was_out: bool) -> None:
        if was_out:  # otherwise there may be a connection, which `refuse` would close
            for each in (peer, *filter(self.allows, self._guests_of(peer))):
                self._node.refuse(each, -math.inf)
        self._events.event(name, text, peer=peer)
        self._keep_all()

    def _named(self, given: str) -> str:
        peer = named(given, {*self._node.known(), *(it.peer for it in self.reputation.decisions(trio.current_time()))})
        if peer == self._me:
            raise ConfigError(f"peer: {peer} is this node itself; `starling peers` lists the others")
        return peer

    def _keep_all(self) -> None:
        now, until = trio.current_time(), self._unix_time() - trio.current_time()
        invitations = {peer: invitation for invitation, peer in self._users.items()}
        decisions = self.reputation.decisions(now)
        kept = tuple(replace(it, until=it.until + until, invitation=invitations.get(it.peer, "")) for it in decisions)
        try:
            self._keep(kept)
        except ConfigError as error:
            if not self._cannot_keep:
                self._events.event("cannot_keep_bans", f"bans are forgotten at a restart: {error}", level="error")
            self._cannot_keep = True


def named(given: str, known: Collection[str]) -> str:
    """Return the peer id that is meant: a whole id, known or not, or the beginning or end of a `known` one, as lists show it after "…".

    Raises ConfigError: no known id matches, or several do.
    """
    part = given.removeprefix("…")
    with suppress(ValueError):
        public_key_of(part)
        return part
    meant = sorted(peer for peer in known if part and (peer.startswith(part) or peer.endswith(part)))
    if len(meant) == 1:
        return meant[0]
    if not meant:
        raise ConfigError(f"peer: no known peer is {given!r}; `starling peers` lists them, or give a whole peer id")
    some = ", ".join(f"…{peer[-SHOWN:]}" for peer in meant[:3]) + (", …" if len(meant) > 3 else "")
    raise ConfigError(f"peer: {given!r} may be any of {len(meant)} ({some}); give more of its id, or its end")
