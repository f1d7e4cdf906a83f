"""The trainer that a call selects, and that unselected ones are not imported."""

import json
import subprocess
import sys

import pytest
from msgspec import structs

from starling.node.catalogues import TRAINERS, trainer
from tests.harness.engines import manifest, open_request
from tests.harness.processes import ROOT

OPENED = """
import json, sys
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, opened
engine = opened(manifest())
done(engine, calls.Train(0, 2))
print(json.dumps([name for name in sys.modules if name.startswith("starling.node.extras")]))
"""


@pytest.mark.parametrize(
    ("name", "agreed", "changes"),
    [
        ("gradients", {}, {}),
        ("gradients", {"mix": "sparse_outer"}, {}),
        ("island", {}, {"ranks": 2}),
        ("seeds", {"mix": "seeds"}, {}),
        ("seeds", {"mix": "seeds"}, {"ranks": 2}),  # this backend refuses to start the ranks
        ("stage", {}, {"stage": 0}),
    ],
)
def test_a_call_selects_its_trainer(name, agreed, changes):
    assert trainer(structs.replace(open_request(manifest(**agreed)), **changes)) is TRAINERS[name]


def test_an_engine_imports_only_configured_capabilities():
    done = subprocess.run([sys.executable, "-c", OPENED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
