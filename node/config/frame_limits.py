"""Check that an exchange's messages fit a frame, before anything is sent. Torch-free."""

import math

from starling.gossip.compress.catalogue import BUDGET, QUANTIZERS
from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.moments import averages_memories
from starling.gossip.wire.schema import MAX_PAYLOAD_BYTES
from starling.node.config import size as sizes
from starling.node.config.schema import Manifest
from starling.node.status.format import size as shown

_MEMORY = 1.6  # most bytes per number of memories: m in eight bits and v in four, with their scales
_IMPLIED = {"full", "mask", "random_k"}  # selectors whose coordinates need not be sent


def check(manifest: Manifest, dim: int | None = None) -> None:
    """Raise ConfigError where a payload of vectors (dim,) does not fit a frame, or there are more parts than coordinates.

    `dim`: of what is shared; None: what the manifest says of the model, if it does.
    """
    dim = parameters(manifest) if dim is None else dim
    if dim and (why := objection(manifest, dim)):
        raise ConfigError(why)


def objection(manifest: Manifest, dim: int) -> str:
    """Return why exchanges of vectors (dim,), dim >= 1, do not work, and what helps; "" where they do, or where that is not known."""
    compress, facts = manifest.compress, MIXERS.facts(manifest.mix.kind)
    given = compress.params()
    parts = given.get("parts", 1) if compress.select == "fragment" and not facts.gathers else 1
    if parts > dim:
        return (
            f"compress.parts: must be <= {dim:,}, what is exchanged has no more numbers, got {parts:,}; "
            f"try `--set compress.parts={max(2, min(dim, 8))}`"
        )
    longest = _longest(manifest, dim, math.ceil(dim / parts) if parts > 1 else None)
    if longest <= MAX_PAYLOAD_BYTES:
        return ""
    said = f"a message about {dim:,} numbers takes {shown(longest)}, a frame holds {shown(MAX_PAYLOAD_BYTES)}"
    if facts.gathers or facts.exact or facts.broadcasts:
        return f"compress.select: {said}, and mix={manifest.mix.kind} cannot send less; try a smaller model, or `--set mix.kind=pet`"
    whole = _longest(manifest, dim, dim)
    least = max(2, math.ceil(whole / MAX_PAYLOAD_BYTES))
    return f"compress.select: {said}; try `--set compress.select=fragment --set compress.parts={least}`"


def _longest(manifest: Manifest, dim: int, count: int | None) -> int:
    """Return the bytes of the longer message of an exchange of `count` consecutive coordinates, None: of those that the selector takes.

    Without headers; 0 where nobody knows.
    """
    compress, facts = manifest.compress, MIXERS.facts(manifest.mix.kind)
    request, response = (QUANTIZERS.facts(name).bits / 8 for name in (compress.request, compress.response))
    if facts.gathers:
        return math.ceil(dim * response)
    listed = 0.0
    if count is None:
        if compress.select == BUDGET:  # cuts by itself
            return 0
        count = math.ceil(compress.params().get("ratio", float(compress.select == "full")) * dim)
        if count and compress.select not in _IMPLIED:
            listed = min(dim, count * (2 + math.log2(dim / count))) / 8
    if facts.swaps or facts.broadcasts:
        return math.ceil(count * response + listed)
    if averages_memories(manifest):
        return math.ceil(count * (request + _MEMORY) + listed)
    return math.ceil(max(count * request + listed, count * response))


def parameters(manifest: Manifest) -> int | None:
    """Return the number of shared parameters, from the task's keys or the created manifest; None: not known."""
    if manifest.mix.params().get("fragments", 1) > 1 or manifest.mix.personal or manifest.mix.turns:
        return None  # only a share of the model is exchanged
    if manifest.mix.kind == "seeds":
        return manifest.pace.local_steps
    built = sizes.of(manifest.task)
    return written(manifest) if built is None else built.parameters


def written(manifest: Manifest) -> int | None:
    """Return the number of parameters that the created manifest states, if all are trained; None: it states none, or some are frozen."""
    lines = [line.split(" ", 3) for line in manifest.task.fingerprint]
    lines = [words for words in lines if len(words) == 4]
    model, tensors = ([words for words in lines if (words[0] == "model") is is_model] for is_model in (True, False))
    if not model or any(words[1] == "frozen" for words in tensors):  # nothing of the model is exchanged
        return None
    return int(model[0][1][:18]) if model[0][1].isdecimal() else None
