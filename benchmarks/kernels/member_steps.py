"""Local steps of a plain loop that is a member, by `starling.Swarm`, of a running node.

python -m starling.kernels.member_steps KEYS        as `starling.kernels.slices` says; FOLDER among them is the node's directory
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from starling.kernels import slices
from starling.kernels.plain import Loop, agreed
from starling.node.script.swarm import Swarm

FOLDER = "folder"


def loop(keys: Mapping[str, Any]) -> tuple[slices.Step, int]:
    """Return what does a local step, and d."""
    plain = Loop(agreed({key: value for key, value in keys.items() if key != FOLDER}))
    swarm = Swarm(keys[FOLDER], model=plain.model, optimizer=plain.optimizer)

    def step() -> None:
        swarm.step(plain.step())

    return step, sum(each.numel() for each in plain.model.parameters())


if __name__ == "__main__":
    sys.exit(slices.main(sys.argv[1:], loop))
