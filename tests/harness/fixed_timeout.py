"""A timeout that does not adapt."""

VIEW, OTHER = b"view-digest", b"other-digest"


class Fixed:
    """A deadline that does not adapt, and records its observations."""

    def __init__(self, wait: float = 3.0) -> None:
        self.wait = self.max_wait_s = wait
        self.min_wait_s = min(0.25, wait)
        self.observed = []

    def observe(self, wait_s: float | None) -> None:
        self.observed.append(wait_s)

    learned = True

    def wait_s(self, _lag_s: float = 0.0) -> float:
        return self.wait
