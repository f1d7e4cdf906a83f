"""Whole nodes end where they ended before the redesign, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.trajectory_digests import PLAIN_KERNELS

STORED = Path(__file__).parents[1] / "golden" / "trajectories.json"


@pytest.mark.slow
def test_final_models_equal_those_of_the_commit_before_the_redesign():
    """The digests were made at commit 6d90fb16, pet's with a constant rate, and must never be regenerated to fit."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.harness.trajectory_digests"],
        env={**os.environ, **PLAIN_KERNELS},
        capture_output=True,
        check=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert json.loads(made.stdout) == json.loads(STORED.read_text())
