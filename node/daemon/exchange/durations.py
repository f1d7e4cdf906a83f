"""Measure how long payloads and engine calls take, for the deadlines, and warn the owner once if that is too long."""

from dataclasses import dataclass

from starling.gossip.exchange.link_deadlines import EXCHANGE_PAYLOADS, LinkDeadlines
from starling.node.daemon.exchange.facts import Called, Fact, Sent
from starling.node.interfaces import Reporter


@dataclass(slots=True)
class Durations:
    """Observes how long the parts of one node's pairwise exchanges take."""

    report: Reporter
    link_deadlines: LinkDeadlines
    _reported: bool = False

    def observe(self, fact: Fact) -> None:
        """Record the time of a sent payload, or of an answered call."""
        match fact:
            case Called(seconds=seconds):
                self.link_deadlines.calls.observe(seconds)
            case Sent(message, _, seconds) if message.payload_bytes:
                self.link_deadlines.transfers.observe(message.peer, seconds, message.payload_bytes)
                self._check()

    def _check(self) -> None:
        waits, most_s = self.link_deadlines, self.link_deadlines.deadline.max_wait_s
        if EXCHANGE_PAYLOADS * waits.transfers.usual_s() > most_s and not self._reported:
            self._reported = True
            text = (
                f"a payload takes {waits.transfers.usual_s():,.1f} s to be sent, too long for exchanges of {most_s:g} s: they get "
                f"up to {waits.longest_s:,.1f} s and are as much rarer; a higher cap (`starling limits --up`), or in the next manifest "
                "a smaller compress.budget_bytes or a longer pace.slot_s, makes them frequent"
            )
            self.report.event("exchanges_slow", text, level="warning")
