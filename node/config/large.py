"""Memory-saving defaults that creation writes into the manifest of a large model where its creator left them open. Torch-free."""

from msgspec import structs

from starling.gossip.mix.moments import averages_memories
from starling.node.config import frame_limits
from starling.node.config.schema import Manifest

LARGE = 1 << 20  # parameters above which memory is saved where possible


def sealed(manifest: Manifest) -> Manifest:
    """Return the manifest with flows in bfloat16 where pet mixes more than `LARGE` parameters and `mix.flows` is left out.

    It is written down, rather than left to each node, because both ends of an edge must round alike, also those of an earlier version.
    """
    mix = manifest.mix
    if (
        mix.kind != "pet"
        or averages_memories(manifest)
        or mix.params()["flows"] is not None
        or (frame_limits.parameters(manifest) or 0) <= LARGE
    ):
        return manifest
    return structs.replace(manifest, mix=mix.changed(flows="bfloat16"))
