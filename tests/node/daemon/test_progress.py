"""The engine's figures in a node's progress."""

import math

from starling.node.daemon.progress import Progress, Waits
from starling.node.status.snapshot import EngineFigures


def test_waits_are_of_the_last_rounds_and_of_whom_was_waited_for_longest():
    waits = Waits(window=3)
    assert (waits.share, waits.longest) == (None, "")
    for waited_s, peers in ((9.0, ("gone",)), (3.0, ("a",)), (0.0, ("z",)), (5.0, ("a", "b"))):
        waits.add(10.0, waited_s, peers)
    assert waits.share == 8.0 / 30.0
    assert waits.longest == "a"
    for _ in range(3):
        waits.add(10.0, 0.0, ("z",))
    assert waits.longest == ""


def test_loss_and_distance_stay_until_measured_again():
    progress = Progress()
    progress.measured(EngineFigures(20, 0.5, epsilon=1.0, distance=0.25, gpu=0.75, gpu_memory_bytes=4096))
    progress.measured(EngineFigures(20))  # a round without local steps, on an engine that lost its GPU
    assert progress.figures == EngineFigures(20, 0.5, distance=0.25)
    progress.measured(EngineFigures(40, math.nan, distance=0.0))
    assert math.isnan(progress.figures.loss)
    assert progress.figures.distance == 0.0
