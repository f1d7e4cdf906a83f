"""Mixing algorithms by name. Torch-free: manifests are checked against this table."""

from dataclasses import dataclass

from starling.gossip.api import Mixer
from starling.gossip.catalogue import Catalogue, Entry


@dataclass(frozen=True, slots=True)
class MixerFacts:
    """Facts of a mixing algorithm, known without building it."""

    asynchronous: bool = False  # may run in clock pace
    static: bool = False  # needs one symmetric mixing matrix that never changes
    swaps: bool = False  # both ends send messages instead of applying one difference
    common: bool = False  # swaps in which every node sends all its peers the same message
    exact: bool = False  # messages must be exact: no lossy codec, no mask
    gathers: bool = False  # nodes ask peers for their vectors and combine them by a rule
    broadcasts: bool = False  # every node sends all others one message, and all add the same sum
    symmetric: bool = False  # needs equal weights at both ends of a link
    rated: bool = False  # divides by the optimiser's rate, which adamw does not have in this sense
    trackers: bool = False  # local steps go along an estimate of the mean gradient, into which a node's own enters
    carries: bool = False  # exchanges are about the model alone, so that buffers can be averaged with it

    @property
    def defended(self) -> bool:
        """Return whether each end may limit the difference it applies by its own measure (`starling.robust.distances`).

        Exchanges are about the model alone, and nothing adds up that one end's bound would spoil: no tracker, no fixed mixing matrix.
        """
        return self.carries and not (self.static or self.gathers)

    @property
    def overlaps(self) -> bool:
        """Return whether local steps may overlap a round's exchanges."""
        return self.common or (self.asynchronous and not self.swaps)


_MIX = "starling.gossip.mix"
MIXERS: Catalogue[Mixer, MixerFacts] = Catalogue(
    "mix.kind",
    "starling.mixers",
    {
        "pet": Entry(f"{_MIX}.pet:Pet", MixerFacts(asynchronous=True, rated=True, carries=True)),
        "moments": Entry(f"{_MIX}.moments:Moments", MixerFacts(asynchronous=True, carries=True)),
        "dsgd": Entry(f"{_MIX}.dsgd:Dsgd", MixerFacts(asynchronous=True, carries=True)),
        "gradient_tracking": Entry(f"{_MIX}.gradient_tracking:GradientTracking", MixerFacts(asynchronous=True, trackers=True)),
        "k_gt": Entry(f"{_MIX}.k_gt:KGt", MixerFacts(rated=True)),
        "quasi_global": Entry(f"{_MIX}.quasi_global:QuasiGlobal", MixerFacts(rated=True, carries=True), maturity="experimental"),
        "exact_diffusion": Entry(f"{_MIX}.exact_diffusion:ExactDiffusion", MixerFacts(static=True, carries=True), maturity="experimental"),
        "d2": Entry(f"{_MIX}.exact_diffusion:D2", MixerFacts(static=True, carries=True), maturity="experimental"),
        "a2cid2": Entry(f"{_MIX}.a2cid2:A2Cid2", MixerFacts(asynchronous=True, carries=True), maturity="experimental"),
        "choco": Entry(f"{_MIX}.dsgd:Choco", MixerFacts(static=True, swaps=True)),
        "beer": Entry(f"{_MIX}.gradient_tracking:Beer", MixerFacts(static=True, swaps=True, trackers=True)),
        "push_sum": Entry(f"{_MIX}.push_sum:PushSum", MixerFacts(asynchronous=True, swaps=True, exact=True), maturity="experimental"),
        "r_fast": Entry(f"{_MIX}.gradient_tracking:RFast", MixerFacts(asynchronous=True, swaps=True, exact=True, trackers=True)),
        "psgd": Entry(f"{_MIX}.all_gather:Psgd", MixerFacts(static=True, swaps=True, common=True)),
        "outer": Entry(f"{_MIX}.outer:Outer", MixerFacts()),
        "gather": Entry(f"{_MIX}.gather:Gather", MixerFacts(gathers=True, carries=True)),
        "sparse_outer": Entry(f"{_MIX}.sparse_outer:SparseOuter", MixerFacts(broadcasts=True)),
        "seeds": Entry(f"{_MIX}.seeds:Seeds", MixerFacts(broadcasts=True), maturity="experimental"),
        "defended_tracking": Entry(
            f"{_MIX}.defended_tracking:DefendedTracking",
            MixerFacts(swaps=True, exact=True, symmetric=True, trackers=True),
            maturity="experimental",
        ),
    },
    MixerFacts(),
    members=("edge", "start", "correct", "publish", "shared", "absorb", "corrected"),
    supplied=("rule", "seed", "steps"),
)
