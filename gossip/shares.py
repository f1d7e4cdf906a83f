"""Places of a bounded resource, shared fairly: the owner with most gives one up to an owner with fewer, regardless of who came first.

Each owner has a name at several levels, from coarse to fine, such as (address prefix, peer). If all places are taken, a newcomer gets the
newest place of the owner with most places. Levels are compared one after another: at the first level where an owner has at least two places
more than the newcomer, the owner with most places loses one; among several owners with this name, the next level decides. If no owner has
so many more, the newcomer's own oldest place is freed, and a newcomer without places is refused. So a flood of free identities from one
prefix only takes places from itself, and owners with equal shares keep theirs.

Without I/O or clock.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Place = TypeVar("Place", bound=Hashable)


@dataclass(slots=True)
class Shares(Generic[Place]):
    """Owners of `most` > 0 places."""

    most: int
    _owners: dict[Place, tuple[str, ...]] = field(default_factory=dict)  # the oldest first

    def __post_init__(self) -> None:
        if self.most <= 0:
            raise ValueError(f"most must be > 0, got {self.most}")

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, place: object) -> bool:
        return place in self._owners

    def is_free(self, owner: tuple[str, ...]) -> bool:
        """Return whether an owner, named at each level, would be given a place."""
        return len(self._owners) < self.most or self._greediest(owner) is not None

    def take(self, place: Place, owner: tuple[str, ...]) -> tuple[bool, Place | None]:
        """Give a place to an owner, named at each level; return whether it got one, and the place that was freed for it."""
        given_up = None
        if place not in self._owners and len(self._owners) >= self.most:
            given_up = self._greediest(owner)
            if given_up is None:
                return False, None
            del self._owners[given_up]
        self._owners[place] = owner
        return True, given_up

    def leave(self, place: Place) -> None:
        """Free a place; nothing happens if it is free."""
        self._owners.pop(place, None)

    def _greediest(self, owner: tuple[str, ...]) -> Place | None:
        """Return the place to free for a newcomer; None: it has none, and no owner has two more."""
        among = self._owners
        for level, name in enumerate(owner):
            held = Counter(each[level] for each in among.values())
            most = max(held, key=lambda each: held[each], default=None)
            if most is not None and held[most] > held[name] + 1:
                return self._newest(most, level)
            among = {place: each for place, each in among.items() if each[level] == name}
        return next(iter(among), None)

    def _newest(self, name: str, level: int) -> Place:
        among = {place: each for place, each in self._owners.items() if each[level] == name}
        for finer in range(level + 1, len(next(iter(among.values())))):
            held = Counter(each[finer] for each in among.values())
            most = max(reversed(held), key=lambda each: held[each])  # the latest among equals
            among = {place: each for place, each in among.items() if each[finer] == most}
        return next(reversed(among))
