"""What the engine measures, carried whole from there over the daemon's progress to the status."""

from __future__ import annotations

import msgspec


class EngineFigures(msgspec.Struct, frozen=True):
    """Figures of one moment. Names are those of `starling.node.status.snapshot`.

    Args:
        local_steps: done since the beginning of this node's training.
        loss: mean of the local steps since the last figures: None without a step, nan if none has a loss.
            A step has none where it left the finite numbers, or no data are used any more.
        epsilon: privacy loss of this node's data so far, at privacy.delta; None where steps are not noised.
        distance: consensus distance of the exchanges since the last figures; None where none showed it.
        gpu: share of the time that the GPU was busy, with whatever, 0 to 1; None where there is none or it is not known.
        gpu_memory_bytes: of the GPU, taken by the engine; None likewise.
    """

    local_steps: int = 0
    loss: float | None = None
    epsilon: float | None = None
    distance: float | None = None
    gpu: float | None = None
    gpu_memory_bytes: int | None = None
