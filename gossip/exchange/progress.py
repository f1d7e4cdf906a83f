"""Progress of the swarm, estimated from the rounds that peers report; some of them may be Byzantine.

A round is credible if f + 1 voters report it or a later one, with f = a third of the voters and at least one. Voters are the electors of
`starling.gossip.quorum`; while fewer than two of them are there, the peers that this node has exchanged with. Without any, or with a
single one that is no elector, all peers are: the node knows nothing better and has hardly any training with others to lose. So strangers,
however many, move nobody else.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from starling.gossip.quorum import Electorate, credible

WINDOW = 8  # recent rounds of ours whose links tell whether a peer has left us behind


@dataclass(slots=True)
class PeerProgress:
    """The highest round (slot) reported by each peer, and which peers have left us behind."""

    rounds: dict[str, int] = field(default_factory=dict)
    _late: dict[str, int] = field(default_factory=dict)  # peer -> the round at which it last said that we are late
    # peer -> (our round at its last link, whether it had already passed that round)
    _met: dict[str, tuple[int, bool]] = field(default_factory=dict)
    _electorate: Electorate = field(default_factory=Electorate)

    def record(self, peer: str, round: int) -> None:
        """Record `round`, which a message of `peer` carries; only an increase counts."""
        self.rounds[peer] = max(round, self.rounds.get(peer, 0))

    def of(self, peer: str) -> int:
        """Return the peer's highest round, 0 without any report."""
        return self.rounds.get(peer, 0)

    def exchanged(self, peer: str) -> None:
        """Count a committed exchange, by which a peer earns its vote."""
        self._electorate.exchanged(peer)

    def forget(self, peer: str) -> None:
        """Delete the reports of a peer that is gone; its exchanges count again if it comes back."""
        for reports in (self.rounds, self._late, self._met):
            reports.pop(peer, None)

    def said_late(self, peer: str, round: int) -> None:
        """Record that a peer in `round` called this node late."""
        self._late[peer] = round

    def contradicts(self, peer: str, round: int) -> bool:
        """Tell, once, if a message that carries `round` shows that a peer that called us late was not itself further.

        Its round may go back by one, where its engine was lost and a round is repeated. From then on it is believed to be in `round`.
        """
        if self._late.get(peer, 0) <= round + 1:
            return False
        del self._late[peer]
        self.rounds[peer] = round
        self._met.pop(peer, None)
        return True

    def met(self, peer: str, round: int, *, passed: bool) -> None:
        """Record how the link of our `round` with `peer` ended: `passed` if it had gone on to a later round, else it was in this one."""
        self._met[peer] = round, passed

    def passed_to(self, round: int, missed_rounds: int) -> int:
        """Return the round that enough recently met peers have gone on to, if they left us behind in `round`, else at most `round`.

        Claims beyond round + reach count for nothing here.
        """
        voters = self._voters
        lately = [(peer, passed) for peer, (at, passed) in self._met.items() if round - WINDOW < at and peer in voters]
        return credible(self.of(peer) if passed and self.of(peer) <= round + missed_rounds else round for peer, passed in lately)

    def claimed(self, round: int, missed_rounds: int) -> int:
        """Return the second largest round, up to `round` + `missed_rounds`, that voters report, else `round`: for a node that knows that it
        was away for so long.
        """
        within = sorted((at for at in self._reports() if round < at <= round + missed_rounds), reverse=True)
        return within[1] if len(within) > 1 else round

    @property
    def lead(self) -> int:
        """Return the largest credible round; 0 with a single report."""
        return credible(self._reports())

    def _reports(self) -> list[int]:
        voters = self._voters
        return [at for peer, at in self.rounds.items() if peer in voters]

    @property
    def _voters(self) -> Collection[str]:
        """Return the peers whose reports count."""
        heard = self.rounds.keys()
        electors, partners = self._electorate.electors & heard, self._electorate.partners & heard
        if len(electors) >= 2:
            return electors
        return partners if electors or len(partners) >= 2 else heard | self._met.keys()
