"""Compare a node's expected peak memory with what is free when it joins, before a model is fetched. Torch-free.

`starling.node.config.memory` knows what no engine does without; this is what the manifest and the owner's settings come to, by the counts
that `starling plan` uses (docs/memory.md has measurements).
"""

from pathlib import Path

import psutil

from starling.gossip.compress.budget import affordable
from starling.gossip.compress.catalogue import BUDGET
from starling.gossip.errors import ConfigError
from starling.gossip.mix.moments import averages_memories
from starling.node.config import frame_limits, initial_model, memory
from starling.node.config import size as sizes
from starling.node.config.schema import Manifest, NodeConfig, NumericsSection
from starling.node.status.format import size as shown

MODEL, GRADIENT = 4, 4  # bytes per parameter
SUM = 4  # of flows
EXCHANGE = 14  # bytes per parameter while a whole vector is exchanged, at most
PARTS = {"float32": 1.0, "bfloat16": 0.5, "int8": 0.25}
ADAMS = frozenset({"adam", "adamw", "nadam", "radam"})
_MOMENTS = dict.fromkeys((*ADAMS, "adamax", "adadelta"), 8) | dict.fromkeys(("rmsprop", "adagrad", "rprop", "muon"), 4)
NEIGHBOURS = 6  # most neighbors whose flows are expected
PROCESS = 250_000_000  # bytes of an engine without a model


def check(manifest: Manifest, config: NodeConfig, free: int) -> None:
    """Raise ConfigError where more is expected than the `free` bytes, unless the owner allowed it."""
    if config.memory_check and (why := objection(manifest, config.numerics, free)):
        raise ConfigError(why)


def here(config: NodeConfig, driver: Path = Path("/dev/nvidiactl")) -> int | None:
    """Return the bytes free for a node on this machine's processor; None where it may train on a GPU, whose memory is not known yet."""
    if config.device == "cuda" or (config.device == "auto" and driver.exists()):
        return None
    return min(int(psutil.virtual_memory().available), memory.available())


def objection(manifest: Manifest, numerics: NumericsSection, free: int) -> str:
    """Return one line if more than `free` bytes are expected, with what helps; "" if not, or if that is not known."""
    dim = parameters(manifest)
    if dim is None or manifest.crew.stages > 1:
        return ""
    each, batch = bytes_per_parameter(manifest, numerics, dim), _batch(manifest, numerics)
    needed = expected(manifest, numerics, dim)
    if needed <= free:
        return ""
    cures = []
    if manifest.optimizer.kind in ADAMS and numerics.moments != "int8":
        cures.append("`--set numerics.moments=int8`")
    if batch > needed // 4:
        cures.append("`--set numerics.micro_batch=1`")
    return (
        f"memory: this swarm's task is expected to take {shown(needed)} at its peak ({dim:,} parameters at {each:.3g} bytes and batches of "
        f"{shown(batch)}), {shown(free)} are free; {', '.join(['close other programs', *cures])}, or join all the same with `--anyway`"
    )


def expected(manifest: Manifest, numerics: NumericsSection, dim: int) -> int:
    """Return the bytes of an engine at its peak, with a model of `dim` parameters."""
    return PROCESS + round(bytes_per_parameter(manifest, numerics, dim) * dim) + _batch(manifest, numerics)


def parameters(manifest: Manifest) -> int | None:
    """Return the number of parameters of the whole model, from the task's keys, the created manifest or, for scripts, their initial model;
    None: not known.
    """
    if (built := sizes.of(manifest.task)) is not None:
        return built.parameters
    held = initial_model.sent(manifest)
    return frame_limits.written(manifest) or (None if held is None else held.size // MODEL)


def bytes_per_parameter(manifest: Manifest, numerics: NumericsSection, dim: int) -> float:
    """Return the bytes per parameter at the peak of a round, for a model of `dim` parameters in float32."""
    kind, mix = manifest.optimizer.kind, manifest.mix
    moments = float(_MOMENTS.get(kind, 0))
    if kind == "sgd":
        moments = 4.0 if manifest.optimizer.params()["momentum"] else 0.0
    if kind in ADAMS:
        moments *= PARTS[numerics.moments]
    held = 0.0
    if mix.kind == "pet" and not averages_memories(manifest):
        held = of_flows(mix.params()["flows"] or "float32", min(NEIGHBOURS, max(1, manifest.pace.quorum - 1)))
    return MODEL + moments + held + max(GRADIENT, share(manifest, dim) * EXCHANGE)


def of_flows(numbers: str, neighbours: int) -> float:
    """Return the bytes per parameter of flows stored in such numbers, and of their sum."""
    return SUM + 4.0 * PARTS[numbers] * neighbours


def share(manifest: Manifest, dim: int) -> float:
    """Return the largest share of a vector of `dim` numbers that one exchange takes."""
    compress = manifest.compress
    if compress.select == BUDGET:
        return affordable(dim)
    given = compress.params()
    return float(given.get("ratio", 1.0)) / int(given.get("parts", 1))


def _batch(manifest: Manifest, numerics: NumericsSection) -> int:
    """Return the bytes that a batch's samples keep; 0 where that is not known."""
    task, size = manifest.task, sizes.of(manifest.task)
    if size is None:
        return 0
    return 4 * size.trained * min(task.batch_size, numerics.micro_batch or task.batch_size)
