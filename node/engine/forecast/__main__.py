"""Prints how long a local step will take: `python -P -m starling.node.engine.forecast MANIFEST.toml [DATA]`."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from msgspec import structs

from starling.gossip.errors import ConfigError
from starling.node.catalogues import task
from starling.node.config import presets
from starling.node.config.schema import Manifest
from starling.node.engine.forecast.step import forecast
from starling.node.tasks.api import Source
from starling.node.tasks.reserved import data_of


def main(argv: Sequence[str]) -> None:
    """Print a `Forecast` as one JSON line, for one thread and an otherwise idle machine.

    Raises ConfigError: as `forecast`, or there are no data.
    """
    file, data = argv[0], Path(argv[1]) if len(argv) > 1 else None
    manifest = presets.load(Manifest, Path(file), ())
    made = task(manifest.task.kind, manifest.task.params())
    source = Source(data, manifest.partition, 0, manifest.seed)
    torch.set_num_threads(1)
    known = forecast(manifest, made, data_of(made, source, "cpu", 0.0), time.thread_time)
    line = {**structs.asdict(known), "step_s": known.step_s}
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as error:
        sys.exit(str(error))
