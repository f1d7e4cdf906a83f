"""Measure codecs on this machine: `starling bench codec --json`.

Figures of a codec `c` (shares in per cent) at length d, as `starling.kernels.schema` explains them:

    c@d.encode_gb_s, c@d.decode_gb_s, c@d.round_trip_gb_s    10^9 bytes of the dense float32 vector a second
    c@d.bytes_per_parameter                                  of the payload
    c@d.index_over_entropy                                   bits of an index over the least there can be; none where none is sent
    c@d.peak_over_dense                                      memory taken beyond the input, in sizes of the dense vector
    c@d.of_memcpy                                            round trips a second over plain copies a second, in the same process
    c@d.of_quiet_beside_n                                    round trips a second beside n busy processes over those without, medians
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.command import cases
from benchmarks.recipes import CodecRecipe
from benchmarks.results import Figures, Run

_FLOAT_BYTES = 4


def measure(recipe: CodecRecipe) -> list[Run]:
    """Measure one length after another, so that memory is needed for one only.

    Raises:
        RuntimeError: the command failed.
    """
    wanted = [(d, beside) for d in recipe.dims for beside in recipe.beside or (0,)]
    return [run for d, beside in wanted for run in cases(arguments(recipe, d, beside), f"d = {d:,}, {beside} busy")]


def arguments(recipe: CodecRecipe, d: int, beside: int) -> list[str]:
    """Return the command line for one length, without `starling`."""
    codecs = [word for codec in recipe.codecs for word in ("--codec", codec)]
    return ["bench", "codec", "--d", str(d), *codecs, "--repeat", str(recipe.repeat), "--beside", str(beside), "--json"]


def figures(runs: Sequence[Run]) -> Figures:
    """Return the figures of the runs."""
    return {f"{name(run['codec'])}@{run['d']}.{key}": value for run in runs for key, value in _figures(run)}


def name(codec: str) -> str:
    """Return the name with shares in per cent, since a dot would end the name of a group of figures."""
    return "+".join(f"{kind}:{100 * float(share):g}%" if share else kind for kind, _, share in _parts(codec))


def _parts(codec: str) -> Iterator[tuple[str, str, str]]:
    """Yield the parts of a codec's name; `torch.topk`, the baseline, contains a dot."""
    return (part.replace("torch.", "torch_").partition(":") for part in codec.split("+"))


def _figures(run: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    if run.get("beside"):  # older results have no such runs
        yield f"of_quiet_beside_{run['beside']}", run["beside_over_quiet"]
        return
    for key in ("encode_gb_s", "decode_gb_s", "round_trip_gb_s", "bytes_per_parameter"):
        yield key, run[key]
    yield "index_over_entropy", run["index_bits_over_entropy"]
    peak = run["peak_extra_bytes"]
    yield "peak_over_dense", None if peak is None else peak / (run["d"] * _FLOAT_BYTES)
    yield "of_memcpy", run["round_trip_gb_s"] / run["memcpy_gb_s"]
