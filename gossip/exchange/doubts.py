"""Members that let this node down: whom it does without for a while, by its own measure. No clock.

    Doubts       who was waited for in vain IN_VAIN times, of each of which its turns in time forgive a part (`marks.py`)
    Demotions    who did not deliver what it had signed: for DEMOTED turns of the swarm, twice as many each time within LONGEST turns

Neither is ended by being in time once: a member that is in time and lets others down by turns would cost them a wait each second time.
"""

from dataclasses import dataclass, field

from starling.gossip.exchange.marks import Marks
from starling.gossip.limits import keep

IN_VAIN = 3
DEMOTED, LONGEST = 32, 1024
MAX_DEMOTED = 1024  # members of which this is remembered


@dataclass(slots=True)
class Doubts:
    """Members that were waited for in vain IN_VAIN times, less what their turns in time forgave."""

    _marks: Marks[str] = field(default_factory=Marks[str])

    def __len__(self) -> int:
        return len(self._marks)

    def __contains__(self, peer: str) -> bool:
        return self._marks.of(peer) > IN_VAIN - 1

    def late(self, peer: str) -> None:
        """Note that a member was waited for in vain."""
        self._marks.add(peer)

    def in_time(self, peer: str) -> None:
        """Note that a member was in time."""
        self._marks.forgive(peer)

    def forget(self, peer: str) -> None:
        """Delete what is known of a peer."""
        self._marks.forget(peer)


@dataclass(slots=True)
class Demotions:
    """Members that did not deliver what they had signed."""

    _until: dict[str, tuple[int, int]] = field(default_factory=dict)  # peer -> (number of turns, the last of them)

    def __len__(self) -> int:
        return len(self._until)

    def failed(self, peer: str, turn: int) -> None:
        """Demote a member from `turn` on."""
        turns, last = self._until.get(peer, (0, turn))
        turns = min(2 * turns, LONGEST) if turns and turn <= last + LONGEST else DEMOTED
        keep(self._until, peer, (turns, turn + turns), MAX_DEMOTED)

    def delivered(self, peer: str, turn: int) -> None:
        """End the demotion of a member before `turn`; the next one is longer all the same."""
        if peer in self._until:
            turns, last = self._until[peer]
            self._until[peer] = turns, min(last, turn - 1)

    def active(self, peer: str, turn: int) -> bool:
        """Return whether a member is demoted in a turn."""
        return peer in self._until and self._until[peer][1] >= turn
