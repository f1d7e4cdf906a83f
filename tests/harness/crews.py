"""The reference for crews: one machine that accumulates the same micro-batches."""

from msgspec import structs

from starling.node.config.schema import CrewSection, NumericsSection
from starling.node.engine.worker import Worker
from starling.node.rpc import calls

PLAIN = {"activation": "float32", "gradient": "float32", "micro_batches": 4}
"""Keys of [crew] with which nothing is rounded on the way."""


def text_in(folder):
    """Write a small deterministic text to a file in `folder`; return its path."""
    path = folder / "text.txt"
    path.write_bytes(bytes(32 + (i * i % 97 + i % 13) % 90 for i in range(20_000)))
    return str(path)


def one_machine(manifest):
    """Return an engine with the whole model, which accumulates gradients of batches of 8 as crews with `PLAIN` do, drawn like crew 0's."""
    engine, numerics = Worker(), NumericsSection(micro_batch=2)
    alone = structs.replace(manifest, crew=CrewSection())
    opened = engine.handle(calls.Open(alone, "", 0, "cpu", 1, "", "crew 0", numerics=numerics))
    assert isinstance(opened, calls.Opened), opened
    return engine
