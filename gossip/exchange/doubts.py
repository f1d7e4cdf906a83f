"""Members that let this node down: whom it does without for a while, by its own measure. No clock.

    Doubts       who was waited for in vain IN_VAIN times, each of which is forgiven by FORGIVEN turns of it in which it was in time
    Demotions    who did not deliver what it had signed: for DEMOTED turns of the swarm, twice as many each time within LONGEST turns

Neither is ended by being in time once: a member that is in time and lets others down by turns would cost them a wait each second time.
"""

from dataclasses import dataclass, field

from starling.gossip.limits import keep

IN_VAIN, FORGIVEN = 3, 8
DEMOTED, LONGEST = 32, 1024
MAX_DOUBTED = 1024  # members of which this is remembered


@dataclass(slots=True)
class Doubts:
    """Members that were waited for in vain more often than in one of FORGIVEN + 1 turns."""

    _points: dict[str, int] = field(default_factory=dict)  # peer -> FORGIVEN for each time, less one for each turn in time

    def __len__(self) -> int:
        return len(self._points)

    def __contains__(self, peer: str) -> bool:
        return self._points.get(peer, 0) > (IN_VAIN - 1) * FORGIVEN

    def late(self, peer: str) -> None:
        """Note that a member was waited for in vain."""
        keep(self._points, peer, self._points.get(peer, 0) + FORGIVEN, MAX_DOUBTED)

    def in_time(self, peer: str) -> None:
        """Note that a member was in time."""
        if self._points.get(peer, 0) > 1:
            self._points[peer] -= 1
        else:
            self._points.pop(peer, None)

    def forget(self, peer: str) -> None:
        """Delete what is known of a peer."""
        self._points.pop(peer, None)


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
        keep(self._until, peer, (turns, turn + turns), MAX_DOUBTED)

    def delivered(self, peer: str, turn: int) -> None:
        """End the demotion of a member before `turn`; the next one is longer all the same."""
        if peer in self._until:
            turns, last = self._until[peer]
            self._until[peer] = turns, min(last, turn - 1)

    def active(self, peer: str, turn: int) -> bool:
        """Return whether a member is demoted in a turn."""
        return peer in self._until and self._until[peer][1] >= turn
