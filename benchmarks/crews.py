"""Bytes between the stages of a crew, and what is learned with them: `python -m benchmarks.crews STEPS` prints rows of docs/crews.md.

A byte GPT of four blocks, cut in three, on this project's README; deltas on a few windows of it that come again and again.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from starling.node.config.schema import CrewSection, Manifest, OptimizerSection, PartitionSection, TaskSection
from starling.node.simulate.crew import InlineCrew

README = Path(__file__).parents[1] / "README.md"
CODECS = ("float32", "bfloat16", "int8", "int4", "delta8", "delta4", "delta2")
CONTEXT, BATCH = 64, 8


def crew_of(path: Path, activation: str) -> InlineCrew:
    """Three stages that send activations so."""
    return InlineCrew(
        Manifest(
            seed=1, partition=PartitionSection(kind="iid", shards=1),
            optimizer=OptimizerSection(kind="adamw", lr=1e-3, schedule="constant"),
            task=TaskSection(kind="text", path=str(path), batch_size=BATCH, context=CONTEXT, width=64, layers=4, heads=4, tied=False),
            crew=CrewSection(stages=3, micro_batches=4, activation=activation, gradient="float32" if activation == "float32" else "int8"),
        )
    )  # fmt: skip


def main() -> None:
    """Print a row for each codec and kind of text."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    data = README.read_bytes()
    with TemporaryDirectory() as folder:
        for title, text, codecs in (("all of it", data, CODECS[:4]), ("2,000 bytes", data[:2000], CODECS)):
            path = Path(folder) / f"{len(text)}.txt"
            path.write_bytes(text)
            for activation in codecs:
                crew = crew_of(path, activation)
                losses = [crew.step() for _ in range(count)]
                numbers = count * 2 * BATCH * CONTEXT * 64  # of activations over two lines
                last = sum(losses[-10:]) / 10
                row = (
                    title,
                    activation,
                    f"{crew.forward / count:,.0f}",
                    f"{8 * crew.forward / numbers:.2f}",
                    f"{crew.bytes / count:,.0f}",
                )
                sys.stdout.write(f"| {' | '.join((*row, f'{last:.3f}'))} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
