"""Programs that are not part of Starling, and that a machine may lack."""

import shutil

import pytest


def needs(program):
    """Return a mark that skips a test where the program is not installed."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"needs {program}")
