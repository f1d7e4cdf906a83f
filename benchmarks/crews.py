"""Bytes between the stages of a crew, and what is learned with them: `python -m benchmarks.crews STEPS` prints rows of docs/crews.md.

A byte GPT of four blocks, cut in three, on this project's README; deltas on a few windows of it that come again and again.

`python -m benchmarks.crews forged`: two stages learn digits for 120 steps, in 15 of which one of them forges what it sends.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import torch
from torch import Tensor

from starling.gossip.compress import activations
from starling.gossip.pipeline.stage import Pass
from starling.gossip.rng import generator
from starling.node.config.schema import CrewSection, Manifest, OptimizerSection, PartitionSection, TaskSection
from starling.node.extras.crew.engine import bound
from starling.node.simulate.crew import InlineCrew

README = Path(__file__).parents[1] / "README.md"
CODECS = ("float32", "bfloat16", "int8", "int4", "delta8", "delta4", "delta2")
CONTEXT, BATCH = 64, 8


def crew_of(path: Path, activation: str) -> InlineCrew:
    """Return three stages that send activations with this codec."""
    return InlineCrew(
        Manifest(
            seed=1,
            partition=PartitionSection(kind="iid", shards=1),
            optimizer=OptimizerSection(kind="adamw", lr=1e-3, schedule="constant"),
            task=TaskSection(kind="text", path=str(path), batch_size=BATCH, context=CONTEXT, width=64, layers=4, heads=4, tied=False),
            crew=CrewSection(stages=3, micro_batches=4, activation=activation, gradient="float32" if activation == "float32" else "int8"),
        )
    )


FORGERIES: MappingProxyType[str, tuple[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "none": ("", lambda x: x),
        "activations × 10⁶": ("F", lambda x: x * 1e6),
        "activations × 10³⁰": ("F", lambda x: x * 1e30),
        "activations by chance, as long": (
            "F",
            lambda x: torch.randn(x.shape, generator=generator(0, "forged")) * x.square().mean().sqrt(),
        ),
        "gradients × 10⁶": ("B", lambda x: x * 1e6),
        "gradients × 10³⁰": ("B", lambda x: x * 1e30),
        "gradients × −1": ("B", lambda x: -x),
    }
)
"""What a stage makes of what it has computed, and which way it sends that."""
STEPS, FORGED = 120, range(60, 75)


@contextmanager
def without_bound() -> Iterator[None]:
    """Disable the bound of activations' lengths."""
    usual, bound.MOST = bound.MOST, math.inf
    try:
        yield
    finally:
        bound.MOST = usual


def forged(optimizer: OptimizerSection, way: str, forge: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """Return the mean loss of the last ten steps of two stages that learn digits, and how far their model went from where it began."""
    how, task = activations.codec("float32"), TaskSection(kind="digits", batch_size=32)

    def on_the_way(sent: Pass) -> Pass:
        if crew.steps not in FORGED or sent.way != way:
            return sent
        values, _ = activations.decode(sent.payload, how, task.batch_size // 4)
        return replace(sent, payload=activations.encode(forge(values), how, generator(0, "sent"))[0])

    crew = InlineCrew(
        Manifest(
            seed=1,
            partition=PartitionSection(kind="iid", shards=1),
            optimizer=optimizer,
            task=task,
            crew=CrewSection(stages=2, micro_batches=4, activation="float32", gradient="float32"),
        ),
        on_the_way=on_the_way,
    )
    began = crew.vector.clone()
    losses = [crew.step() for _ in range(STEPS)]
    return sum(losses[-10:]) / 10, float((crew.vector - began).norm())


def print_forged() -> None:
    """Print a row for each forgery, with each optimiser, without and with the bound."""
    for optimizer in (
        OptimizerSection(kind="sgd", lr=0.05, schedule="constant"),
        OptimizerSection(kind="adamw", lr=1e-3, schedule="constant"),
    ):
        for title, (way, forge) in FORGERIES.items():
            with without_bound():
                loss, moved = forged(optimizer, way, forge)
            bounded, moved_less = forged(optimizer, way, forge)
            row = (optimizer.kind, title, f"{loss:.3f}", f"{moved:,.1f}", f"{bounded:.3f}", f"{moved_less:,.1f}")
            sys.stdout.write(f"| {' | '.join(row)} |\n")
            sys.stdout.flush()


def main() -> None:
    """Print a row for each codec and kind of text, or for each forgery."""
    if sys.argv[1:] == ["forged"]:
        print_forged()
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    data = README.read_bytes()
    with TemporaryDirectory() as folder:
        for title, text, codecs in (("all of it", data, CODECS[:4]), ("2,000 bytes", data[:2000], CODECS)):
            path = Path(folder) / f"{len(text)}.txt"
            path.write_bytes(text)
            for activation in codecs:
                crew = crew_of(path, activation)
                losses = [crew.step() for _ in range(count)]
                numbers = count * 2 * BATCH * CONTEXT * 64  # numbers of all activations over two links
                last = sum(losses[-10:]) / 10
                row = (title, activation, f"{crew.forward / count:,.0f}", f"{8 * crew.forward / numbers:.2f}", f"{crew.bytes / count:,.0f}")
                sys.stdout.write(f"| {' | '.join((*row, f'{last:.3f}'))} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
