"""Peak memory of some work."""

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

NOISE_BYTES = 2 << 20  # bytes by which the resident set grows for reasons outside this code
_STATUS = Path("/proc/self/status")
_FORGET_PEAK = Path("/proc/self/clear_refs")
_PEAK, _NOW = (re.compile(rf"^{name}:\s+(\d+) kB", re.MULTILINE) for name in ("VmHWM", "VmRSS"))


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the peak of memory that Python and numpy use while `work` runs; on Linux the peak resident memory if it is larger."""
    tracemalloc.start()
    before = _resident(forget_peak=True)[0]
    try:
        work()
        traced = tracemalloc.get_traced_memory()[1]
        return max(traced, _resident()[1] - before - NOISE_BYTES)
    finally:
        tracemalloc.stop()


def _resident(*, forget_peak: bool = False) -> tuple[int, int]:
    """Return the resident bytes now, and their peak since the last reset; zeros if the system does not report them."""
    try:
        if forget_peak:
            _FORGET_PEAK.write_text("5")
        status = _STATUS.read_text()
    except OSError:
        return 0, 0
    now, peak = (int(found.group(1)) << 10 if (found := each.search(status)) else 0 for each in (_NOW, _PEAK))
    return now, peak
