"""How peers stand, made effective: faults, exchanges and the owner's word go to the reputation, and what it says is carried out.

    quarantine, ban    connections end and stay refused until then, the peer's flow goes, what was settled with it as well
    unban, trust       the peer may connect again; whatever it once contributed is gone

Bans and trust are kept for the next run, and hold from its first moment on: coming back, or waiting for a restart, undoes nothing. A
banned peer stays in the member list, which all members compute the same from: its links are void at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import trio

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.exchange.commands import Outcome
from starling.node.identity import public_key_of
from starling.node.interfaces import Reporter
from starling.robust.reputation import Decision, Reputation, Standing, Verdict

MAX_WHY = 200
SHOWN = 7
"""Last characters of a peer id that lists show."""


class PeerPolicy:
    """Keeps the reputation of one node's peers.

    Args:
        me: own peer id.
        report: told of verdicts.
        unix_time: seconds since 1970.
        refuse: (peer, until) end connections and refuse the peer until then on trio's clock; -inf lets it in again.
        cut: delete what came of a peer; runs beside this.
        inviter_of: who invited a peer, "" for nobody.
        known: peers that may be named by a part of their id.
        keep: told what is to be kept for the next run, with times in unix seconds.
    """

    def __init__(
        self, *, me: str, report: Reporter, unix_time: Callable[[], float], refuse: Callable[[str, float], None],
        cut: Callable[[str], None], inviter_of: Callable[[str], str], known: Callable[[], Collection[str]],
        keep: Callable[[tuple[Decision, ...]], object],
    ) -> None:  # fmt: skip
        self.reputation = Reputation()
        self._me = me
        self._report = report
        self._unix_time = unix_time
        self._refuse = refuse
        self._cut = cut
        self._inviter_of = inviter_of
        self._known = known
        self._keep = keep
        self._cannot_keep = False

    def resume(self, decisions: Collection[Decision]) -> None:
        """Take over what an earlier run kept: before the owner may say anything new."""
        now, since = trio.current_time(), trio.current_time() - self._unix_time()
        self.reputation.resume((replace(it, until=it.until + since) for it in decisions), now)

    def enforce(self) -> None:
        """Refuse all who are banned, by an earlier run or since: the network is open."""
        now = trio.current_time()
        for decision in self.reputation.decisions(now):
            verdict = self.reputation.verdict(decision.peer, now)
            if verdict.state == "ban":
                self._refuse(decision.peer, verdict.until)

    def standing(self, peer: str) -> Standing:
        """All about a peer, now."""
        return self.reputation.standing(peer, trio.current_time())

    def fine(self, peer: str) -> bool:
        """Whether a peer is neither quarantined nor banned."""
        return self.reputation.verdict(peer, trio.current_time()).state == "ok"

    # --- what peers do ------------------------------------------------------------------------------------

    def fault(self, peer: str, reason: str) -> None:
        """A peer broke the protocol, and whoever invited it answers for it."""
        now = trio.current_time()
        before = self.reputation.verdict(peer, now)
        self._carry_out(peer, before, self.reputation.fault(peer, reason, now))
        inviter = self._inviter_of(peer)
        if inviter and inviter != self._me:
            before = self.reputation.verdict(inviter, now)
            self._carry_out(inviter, before, self.reputation.invited(inviter, reason, now))

    def noted(self, outcomes: Mapping[str, Outcome], clipped: Collection[str] | None = None) -> None:
        """How a round's exchanges ended, by peer, and with whom they were clipped; None where nothing is."""
        now = trio.current_time()
        for peer, outcome in sorted(outcomes.items()):
            if not self.fine(peer):
                continue  # that it does not answer is our doing
            if outcome == "committed":
                self.reputation.exchanged(peer, now, clipped=None if clipped is None else peer in clipped)
            elif outcome == "timeout":
                self.reputation.missed(peer, now)

    def _carry_out(self, peer: str, before: Verdict, verdict: Verdict) -> None:
        if verdict in (before, Verdict("ok", -math.inf)):
            return
        standing = self.standing(peer)
        for_s = verdict.until - trio.current_time()
        why = f", {standing.why}" if standing.why else ""
        self._report.event(
            f"peer_{verdict.state}", f"{peer} is shut out for {for_s:.0f} s ({verdict.state}{why})", level="warning", peer=peer
        )  # fmt: skip
        self._shut_out(peer, verdict)

    def _shut_out(self, peer: str, verdict: Verdict) -> None:
        self._refuse(peer, verdict.until)
        self._cut(peer)
        if verdict.state == "ban":
            self._keep_all()

    # --- what the owner decides ---------------------------------------------------------------------------

    def ban(self, given: str, for_s: float = math.inf, why: str = "") -> str:
        """Shut a peer out. -> its id

        Args:
            given: peer id, its beginning or its end.
            for_s: seconds, > 0; inf for good.
            why: for a person.

        Raises:
            GossipError: no such peer, several, or this node itself.
        """
        peer, now = self._named(given), trio.current_time()
        verdict = self.reputation.shut_out(peer, now, now + for_s, why[:MAX_WHY])
        how_long = f"for {for_s:.0f} s" if math.isfinite(for_s) else "until it is unbanned"
        text = f"{peer} is banned by the owner {how_long}" + (f": {why[:MAX_WHY]}" if why else "")
        self._report.event("peer_ban", text, level="warning", peer=peer)
        self._shut_out(peer, verdict)
        return peer

    def unban(self, given: str) -> str:
        """Undo every ban, quarantine and trust. -> the peer's id

        Raises:
            GossipError: no such peer, several, or there is nothing to undo.
        """
        peer = self._named(given)
        was_out = not self.fine(peer)
        if not self.reputation.forgive(peer):
            raise GossipError(
                f"unban: {peer} is neither shut out nor trusted; `starling peers` shows how everybody stands"
            )
        self._let_in(peer, "peer_unban", f"{peer} is judged like anybody", was_out=was_out)
        return peer

    def trust(self, given: str) -> str:
        """Never shut a peer out, whatever it does. -> its id

        Raises:
            GossipError: no such peer, several, or this node itself.
        """
        peer = self._named(given)
        was_out = not self.fine(peer)
        self.reputation.trust(peer, trio.current_time())
        self._let_in(peer, "peer_trust", f"{peer} is trusted: this node never shuts it out by itself", was_out=was_out)
        return peer

    def _let_in(self, peer: str, name: str, text: str, *, was_out: bool) -> None:
        if was_out:  # else there may be a connection, which that would end
            self._refuse(peer, -math.inf)
        self._report.event(name, text, peer=peer)
        self._keep_all()

    def _named(self, given: str) -> str:
        peer = named(given, {*self._known(), *(it.peer for it in self.reputation.decisions(trio.current_time()))})
        if peer == self._me:
            raise GossipError(f"{peer} is this node itself; `starling peers` lists the others")
        return peer

    def _keep_all(self) -> None:
        now, until = trio.current_time(), self._unix_time() - trio.current_time()
        kept = tuple(replace(it, until=it.until + until) for it in self.reputation.decisions(now))
        try:
            self._keep(kept)
        except ConfigError as error:
            if not self._cannot_keep:
                self._report.event("cannot_keep_bans", f"bans are forgotten at a restart: {error}", level="error")
            self._cannot_keep = True


def named(given: str, known: Collection[str]) -> str:
    """The one peer that a person means.

    Args:
        given: a whole id, known or not, or the beginning or end of a known one; a leading "…" is ignored, as lists show it.
        known: peer ids.

    Raises:
        ConfigError: nobody, or several.
    """
    part = given.removeprefix("…")
    try:
        public_key_of(part)
    except ValueError:
        pass
    else:
        return part
    meant = sorted(peer for peer in known if part and (peer.startswith(part) or peer.endswith(part)))
    if len(meant) == 1:
        return meant[0]
    if not meant:
        raise ConfigError(f"peer: nobody here is {given!r}; `starling peers` lists who is, or give a whole peer id")
    some = ", ".join(f"…{peer[-SHOWN:]}" for peer in meant[:3]) + (", …" if len(meant) > 3 else "")
    raise ConfigError(f"peer: {given!r} may be any of {len(meant)} ({some}); give more of its id, or its end")
