"""A bounded queue that owners share: items are taken round-robin, and the owner with most drops items for those with fewer."""

from collections import Counter, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """Queues of items by owner: at most `each` of one, and at most `total` weight together."""

    def __init__(self, each: int, total: int) -> None:
        self._each = each
        self._spare = total
        self._queues: dict[str, deque[tuple[T, int]]] = {}  # queues by owner, the next one first
        self._held: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def full(self, owner: str) -> bool:
        """Tell if an owner has as many items as it may."""
        return len(self._queues.get(owner, ())) >= self._each

    def put(self, owner: str, item: T, weight: int) -> tuple[str, ...]:
        """Add an item of a weight >= 0 -> the owner of each item that was dropped: this one, or the newest of others."""
        evicted: list[str] = []
        if self.full(owner):
            return (owner,)
        while weight > self._spare:
            largest = max(self._held, key=self._held.__getitem__, default=owner)
            if self._held[largest] <= self._held[owner] + weight:
                return (*evicted, owner)
            self._count(largest, -self._queues[largest].pop()[1])
            evicted.append(largest)
        self._queues.setdefault(owner, deque()).append((item, weight))
        self._count(owner, weight)
        return tuple(evicted)

    def take(self) -> T:
        """Return the oldest item of the next owner. Raises StopIteration: there is none."""
        owner = next(iter(self._queues))
        item, weight = self._queues[owner].popleft()
        self._count(owner, -weight)
        if owner in self._queues:
            self._queues[owner] = self._queues.pop(owner)  # moved to the end of the order
        return item

    def _count(self, owner: str, weight: int) -> None:
        self._spare -= weight
        self._held[owner] += weight
        if not self._queues[owner]:
            del self._queues[owner], self._held[owner]
