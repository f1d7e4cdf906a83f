"""A timeout that does not learn."""

from __future__ import annotations

from dataclasses import dataclass, field

VIEW, OTHER = b"view-digest", b"other-digest"


@dataclass
class Fixed:
    """A deadline that learns nothing and remembers what it observed."""

    wait: float = 3.0
    observed: list[float | None] = field(default_factory=list)

    def observe(self, wait_s: float) -> None:
        self.observed.append(wait_s)

    def observe_timeout(self) -> None:
        self.observed.append(None)

    def wait_s(self) -> float:
        return self.wait
