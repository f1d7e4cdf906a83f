"""The engine's figures in a node's progress."""

import math

from starling.node.daemon.progress import Progress
from starling.node.status.snapshot import EngineFigures


def test_loss_and_distance_stay_until_measured_again():
    progress = Progress()
    progress.measured(EngineFigures(20, 0.5, epsilon=1.0, distance=0.25, gpu=0.75, gpu_memory_bytes=4096))
    progress.measured(EngineFigures(20))  # a round without local steps, on an engine that lost its GPU
    assert progress.figures == EngineFigures(20, 0.5, distance=0.25)
    progress.measured(EngineFigures(40, math.nan, distance=0.0))
    assert math.isnan(progress.figures.loss)
    assert progress.figures.distance == 0.0
