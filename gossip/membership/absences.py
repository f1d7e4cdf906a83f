"""Members that were absent and returned. On an intermittent connection they soon disappear again, so nobody should wait for them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from starling.gossip.limits import tolerable

PROBATION = 4.0  # a member must have been back this many times as long as it was absent


@dataclass(slots=True)
class Absences:
    """The times until which members count as recently absent: until they were back PROBATION times as long as they were absent.

    Where that is so of more members than may lie, it was the line of this node that was gone, and none of them counts.
    """

    most_s: float  # > 0, longest time after its return for which a member counts
    _until: dict[str, float] = field(default_factory=dict)

    @property
    def peers(self) -> frozenset[str]:
        """Return the remembered members."""
        return frozenset(self._until)

    def over(self, peer: str, gone_s: float, now: float) -> None:
        """A member is back that did not answer for so long, >= 0."""
        until = now + min(PROBATION * gone_s, self.most_s)
        self._until[peer] = max(until, self._until.get(peer, until))

    def lately(self, peer: str, others: int, now: float) -> bool:
        """Tell if `peer`, one of so many others, counts."""
        if now >= self._until.get(peer, now):
            return False
        return sum(now < until for until in self._until.values()) <= tolerable(max(others, 1))

    def keep(self, members: Iterable[str], now: float) -> None:
        """Forget who is no member, and what is over."""
        kept = set(members)
        self._until = {peer: until for peer, until in self._until.items() if peer in kept and now < until}
