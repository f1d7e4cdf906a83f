"""Three stages of one byte GPT as a crew, with activations that travel in full and in eight bits: `python examples/crew/crew.py`."""

import json
import sys
from pathlib import Path

from starling.node.config.schema import CrewSection, Manifest, OptimizerSection, PartitionSection, TaskSection
from starling.node.simulate.crew import InlineCrew

TEXT = Path(__file__).parents[2] / "LICENSE"
STEPS = 100


def trained(activation: str) -> dict[str, float]:
    """Kilobytes between the stages a step, and the loss of the last ten steps."""
    crew = InlineCrew(
        Manifest(
            seed=1,
            partition=PartitionSection(kind="iid", shards=1),
            optimizer=OptimizerSection(kind="adamw", lr=3e-3, schedule="constant"),
            task=TaskSection(kind="text", path=str(TEXT), batch_size=8, context=64, width=64, layers=4, heads=4, tied=False),
            crew=CrewSection(stages=3, micro_batches=4, activation=activation, gradient=activation),
        )
    )
    losses = [crew.step() for _ in range(STEPS)]
    return {"kilobytes": crew.bytes / STEPS / 1000, "loss": sum(losses[-10:]) / 10}


if __name__ == "__main__":
    found = {activation: trained(activation) for activation in ("float32", "int8")}
    sys.stdout.write(f"{json.dumps(found, indent=2)}\n")
