"""The measure is right: what Python, numpy and torch take is seen, or a bound on it would hold for anything."""

import numpy as np
import pytest
import torch

from starling.node.engine import trim_memory
from tests.fuzz.memory import _FORGET_PEAK, peak_bytes

SIZE = 32 << 20


@pytest.mark.parametrize("work", [lambda: bytearray(SIZE), lambda: np.empty(SIZE, np.uint8), lambda: b"x" * SIZE])
def test_memory_requested_by_python_and_numpy_is_measured(work):
    assert SIZE <= peak_bytes(work) < 2 * SIZE


@pytest.mark.skipif(not _FORGET_PEAK.exists(), reason="only Linux tells the peak of what is resident")
def test_memory_of_torch_is_measured():
    trim_memory.trim()  # what earlier tests freed and is still resident would be taken first, unseen
    assert 0.8 * SIZE <= peak_bytes(lambda: torch.ones(SIZE, dtype=torch.uint8)) < 2 * SIZE


def test_work_without_allocations_measures_small():
    assert peak_bytes(lambda: None) < 1 << 20
