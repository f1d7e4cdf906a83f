"""One root seed, many independent uses. Torch-free: `starling.gossip.rng` turns these into torch generators."""

import hashlib


def derive(seed: int, *labels: str | int | bytes) -> int:
    """Return a 63-bit seed for one use, e.g. `derive(seed, "mask", edge, 7)`, from the root seed, 0 <= seed < 2**63; labels are in order.

    Stable across versions and machines: BLAKE2b over length-prefixed labels.
    """
    digest = hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=8)
    for label in labels:
        raw = label if isinstance(label, bytes) else str(label).encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return int.from_bytes(digest.digest(), "little") >> 1
