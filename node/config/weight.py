"""Weight of a node in the swarm's average, by the number of its samples. Torch-free.

The swarm minimises Σ w_i f_i, f_i the mean loss on node i's samples, with w_i = n_i / `mix.typical_samples` in [LEAST, MOST].
Any typical number gives the same minimum where no weight meets a bound; one near the mean keeps steps as long as without weights.

A node weighs its own gradient alone, and nobody is told n_i: who lies about its samples gains no more than by lying about the gradient,
which then is MOST times as long.
"""

from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.node.config.schema import Manifest

LEAST = 0.25
MOST = 4.0


def weight(manifest: Manifest, samples: int) -> float:
    """Return the weight of a node with so many training samples; 1 where the manifest asks for none."""
    typical = manifest.mix.typical_samples
    return 1.0 if typical is None else min(MOST, max(LEAST, samples / typical))


def capped(manifest: Manifest, samples: int) -> str:
    """Return a note on a node whose weight meets a bound; "" where it does not."""
    counts, typical = weight(manifest, samples), manifest.mix.typical_samples
    if typical is None or counts == samples / typical:
        return ""
    return f"this node has {samples:,} samples, {samples / typical:.3g} times mix.typical_samples = {typical:,}; it counts {counts:g} times"


def check(manifest: Manifest, *, trusted: bool) -> None:
    """Raise ConfigError where weights cannot be defended: a rule among strangers treats the node with most samples as an outlier."""
    mix, facts = manifest.mix, MIXERS.facts(manifest.mix.kind, trusted=trusted)
    if mix.typical_samples is not None and (facts.gathers or facts.broadcasts):
        raise ConfigError(
            f"mix.typical_samples: cannot be used with mix={mix.kind}, whose rule leaves out those who differ, and strangers count their "
            f"own samples; got {mix.typical_samples}; leave it out, or try `--set preset=vouched`"
        )
