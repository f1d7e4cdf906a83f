"""Points as lines of a CSV file, flushed one by one: `tag,round,time,value`."""

import csv

from starling.gossip.errors import ConfigError
from starling.node.status.scalars import Scalar
from starling.node.tracking.catalogue import Run


class CsvFile:
    """A new file. Raises ConfigError: it exists, or cannot be made."""

    def __init__(self, target: str, run: Run) -> None:
        try:
            self._file = open(target, "x", newline="", encoding="utf-8", buffering=1)  # noqa: SIM115, PTH123 — until close
        except OSError as error:
            raise ConfigError(f"TARGET: {target} cannot be made: {error.strerror}; name another file") from error
        self._lines = csv.writer(self._file, lineterminator="\n")
        self._lines.writerow(("tag", "round", "time", "value"))

    def add(self, point: Scalar) -> None:
        """Write a line."""
        self._lines.writerow((point.tag, point.round, f"{point.time_s:.3f}", repr(float(point.value))))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
