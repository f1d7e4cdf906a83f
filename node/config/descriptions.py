"""Describe a manifest for people: `method` in one line, `sections` in a row for each thing agreed on. Torch-free.

Every entry of every catalogue that a manifest can name has its words here, which a test checks; a part of another package, or
"module:Class", is called by its name.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from starling.gossip.mix.moments import averages_memories
from starling.node.config import maturity, robustness, script
from starling.node.config.overlay import inexact
from starling.node.config.schema import Manifest
from starling.node.status import format as show

Words = Mapping[str, str]

MIX: Final[Words] = MappingProxyType(
    {
        "pet": "pairwise edge tracking",
        "moments": "averages of models and of what optimisers remember",
        "dsgd": "plain averaging",
        "gradient_tracking": "gradient tracking",
        "k_gt": "gradient tracking with local steps (K-GT)",
        "quasi_global": "quasi-global momentum",
        "exact_diffusion": "exact diffusion",
        "d2": "D²",
        "a2cid2": "averaging with momentum (A²CiD²)",
        "choco": "averaging of public copies (CHOCO)",
        "beer": "gradient tracking of public copies (BEER)",
        "push_sum": "push-sum averaging",
        "r_fast": "gradient tracking by running sums (R-FAST)",
        "psgd": "gathering of all updates",
        "outer": "outer steps on averaged progress (DiLoCo)",
        "sparse_outer": "sparse outer steps told to all",
        "seeds": "losses along shared random directions",
        "gather": "robust combination of pulled models",
        "defended_tracking": "defended gradient tracking",
    }
)
OVERLAY: Final[Words] = MappingProxyType(
    {
        "sticky": "sticky edges",
        "ring": "a ring",
        "grid": "a grid",
        "torus": "a torus",
        "static_exponential": "an exponential graph",
        "erdos_renyi": "a random graph",
        "half_random": "a random graph with half the pairs",
        "d_equi_static": "a fixed directed EquiTopo graph",
        "u_equi_static": "a fixed undirected EquiTopo graph",
        "complete": "all pairs",
        "alone": "no edges",
        "one_peer_exponential": "one peer a round of an exponential graph",
        "hypercube": "a hypercube",
        "hyper_hypercube": "a hyper-hypercube",
        "simple_base_k": "a simple base-(k+1) graph",
        "base_k": "a base-(k+1) graph",
        "random_matching": "random pairs",
        "od_equi_dyn": "one directed EquiTopo shift a round",
        "ou_equi_dyn": "random EquiTopo pairs",
        "rendezvous": "pairs by rendezvous hashing",
        "pull": "peers drawn in secret",
    }
)
SELECT: Final[Words] = MappingProxyType(
    {
        "budget": "whole vectors, or a mask where they exceed the byte budget",
        "full": "whole vectors",
        "mask": "a random mask of the coordinates",
        "fragment": "one stretch of the vector after the other",
        "random_k": "random coordinates",
        "top_k": "the largest coordinates",
        "top_k_sampled": "the largest coordinates, by a sampled threshold",
        "chunk_top_k": "the largest coordinates of every chunk",
        "cocktail": "the largest of randomly chosen coordinates",
        "drift_top_k": "the largest coordinates, half of them as the peer asked",
        "low_rank": "matrices of low rank",
        "layered": "the largest coordinates of every layer",
        "dct_top_k": "the largest cosine coefficients",
    }
)
RULE: Final[Words] = MappingProxyType(
    {
        "mean": "mean",
        "median": "median",
        "trimmed_mean": "trimmed mean",
        "meamed": "mean around the median",
        "krum": "Krum",
        "multi_krum": "Multi-Krum",
        "bulyan": "Bulyan",
        "geometric_median": "geometric median",
        "mda": "minimum-diameter averaging",
        "centered_clip": "centred clipping",
        "sac": "self-adjusting clipping",
        "cs_plus": "clipped sum (CS+)",
        "cs_nnm": "clipped sum after nearest-neighbour mixing",
        "clipped_gossip": "clipped gossip",
        "norm_bound": "norm bounding",
        "nna": "nearest-neighbour averaging",
        "ubar": "UBAR",
        "balance": "BALANCE",
        "bridge": "BRIDGE",
        "flag": "flag median",
        "foolsgold": "FoolsGold",
    }
)
BEFORE: Final[Words] = MappingProxyType({"nnm": "nearest-neighbour mixing", "bucketing": "bucketing"})
TASK: Final[Words] = MappingProxyType(
    {
        "digits": "handwritten digits",
        "images": "images by class",
        "text": "text, byte by byte",
        "synthetic": "synthetic classes",
        "quadratic": "a quadratic",
        "diagonal": "a diagonal quadratic",
        "logistic": "logistic regression",
        "script": "what its members' scripts train",
    }
)
PARTITION: Final[Words] = MappingProxyType(
    {
        "iid": "split at random",
        "dirichlet": "labels in unequal shares",
        "by_label": "few labels each",
        "by_file": "whole files each",
        "by_key": "whole authors each",
    }
)
OPTIMIZER: Final[Words] = MappingProxyType(
    {
        "sgd": "SGD",
        "adamw": "AdamW",
        "adam": "Adam",
        "nadam": "NAdam",
        "radam": "RAdam",
        "adamax": "Adamax",
        "adagrad": "Adagrad",
        "adadelta": "Adadelta",
        "rmsprop": "RMSprop",
        "rprop": "Rprop",
        "asgd": "ASGD",
        "adafactor": "Adafactor",
        "muon": "Muon",
    }
)
ADMISSION: Final[Words] = MappingProxyType(
    {"open": "anyone with the invite", "invite": "those whom the creator or a member invited", "allow": "those whom the creator listed"}
)
PACE: Final[Words] = MappingProxyType({"steps": "rounds", "sampled": "rounds of a sample", "clock": "slots of time"})
_PLAIN = MappingProxyType({"identity": "uncompressed", "sign": "signs", "spread1": "one magnitude", "spread2": "two magnitudes"})
_CODEC = re.compile(r"(?P<base>[a-z]+\d*(?:_e\d+m\d+)?)(?P<nearest>_nearest)?(?:_x(?P<steps>\d))?")


def codec(name: str) -> str:
    """Describe a quantizer: uncompressed, int4, int2 to the nearest in 3 steps."""
    match = _CODEC.fullmatch(name)
    if match is None:
        return name
    words = _PLAIN.get(match["base"], match["base"].replace("_", " "))
    nearest = " to the nearest" if match["nearest"] else ""
    steps = f" in {match['steps']} steps" if match["steps"] else ""
    return f"{words}{nearest}{steps}"


def method(manifest: Manifest) -> str:
    """Describe the method in one line: pairwise edge tracking over sticky edges, int4, 20 local steps a round."""
    mix, pace = manifest.mix, manifest.pace
    how = _called(MIX, "moments" if averages_memories(manifest) else mix.kind)
    if mix.kind == "gather":
        how = f"{_called(RULE, manifest.robust.rule)} of pulled models"
    over = "from" if manifest.overlay.kind == "pull" else "over"
    steps = "1 local step" if pace.local_steps == 1 else f"{pace.local_steps:,} local steps"
    if pace.kind == "sampled":
        averaging = f"{pace.aggregators} average" if pace.aggregators else "the next sample averages"
        return f"{how}, {codec(manifest.compress.response)}: {pace.sample} members train a round, {steps}, {averaging}"
    when = f"{steps} a round" if pace.kind == "steps" else f"an exchange every {show.duration(pace.slot_s)}"
    return f"{how} {over} {_called(OVERLAY, manifest.overlay.kind)}, {codec(manifest.compress.response)}, {when}"


def sections(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Return (name, description) of what all members agreed on, in the order in which a newcomer asks."""
    untried = ", ".join(maturity.experimental(manifest))
    open_to = unprotected(manifest)
    return (
        ("learns", _learns(manifest)),
        ("method", method(manifest)),
        ("steps", _steps(manifest)),
        ("length", _length(manifest)),
        ("sends", _sends(manifest)),
        ("members", _members(manifest)),
        ("tolerates", _tolerates(manifest)),
        *((("unprotected", open_to),) if open_to else ()),
        *((("experimental", untried),) if untried else ()),
    )


def unprotected(manifest: Manifest) -> str:
    """Return which bounds on what one peer moves a manifest does without, and what that means; "" if none."""
    off = ", ".join(f"{key} = {value}" for key, value in robustness.unprotected(manifest).items())
    return off and f"{off}: one false peer can ruin the model"


def _called(words: Words, name: str) -> str:
    return words.get(name, name)


def _learns(manifest: Manifest) -> str:
    task, parts = manifest.task, manifest.partition
    alpha = f" (Dirichlet {parts.alpha:g})" if parts.kind == "dirichlet" else ""
    start = ", from a given model" if task.start else ""
    home = f"; {', '.join(manifest.mix.personal)} stay at home" if manifest.mix.personal else ""
    home += f"; {', '.join(manifest.mix.turns)} in turns" if manifest.mix.turns else ""
    own = "; each takes what helps its own model" if manifest.mix.own else ""
    if script.trains(manifest):
        return f"{_called(TASK, task.kind)}{start}{home}"
    return f"{_called(TASK, task.kind)}, {_called(PARTITION, parts.kind)}{alpha}, {parts.shards:,} shards{start}{home}{own}"


def _steps(manifest: Manifest) -> str:
    optimizer = manifest.optimizer
    schedule = "" if optimizer.schedule == "constant" else f", {optimizer.schedule} schedule"
    samples = "batches of the scripts" if script.trains(manifest) else f"{manifest.task.batch_size:,} samples a step"
    return f"{_called(OPTIMIZER, optimizer.kind)}, rate {optimizer.lr:g}{schedule}, {samples}"


def _length(manifest: Manifest) -> str:
    pace = manifest.pace
    length = f"{pace.rounds:,} {PACE[pace.kind]}" if pace.rounds else "endless"
    beside = ", exchanges beside local steps" if pace.overlap else ""
    return f"{length}, begins with {pace.quorum:,} members, evaluated every {pace.evaluate_every:,}{beside}"


def _sends(manifest: Manifest) -> str:
    compress = manifest.compress
    if manifest.mix.kind == "gather":
        return f"whole models as {codec(compress.response)}"
    sends = f"{_called(SELECT, compress.select)}: {codec(compress.request)} to ask, {codec(compress.response)} to answer"
    every = manifest.overlay.average_every
    averages = f"; an average of all every {every:,}, {'rounded likewise' if inexact(manifest) else 'exact'}" if every else ""
    return sends + averages


def _members(manifest: Manifest) -> str:
    admission = manifest.admission
    work = " and a proof of work" if admission.kind == "open" and admission.bits else ""
    return f"{_called(ADMISSION, admission.kind)}{work}"


def _tolerates(manifest: Manifest) -> str:
    if manifest.mix.kind not in {"gather", "defended_tracking"} or not manifest.byzantine_fraction:
        said = "false models are bounded, far ones refused" if robustness.defended(manifest) else "what members send is trusted"
        return f"crashed and slow members; {said}"
    rule = f", by {_called(RULE, manifest.robust.rule)}" if manifest.mix.kind == "gather" else ""
    before = f" after {_called(BEFORE, manifest.robust.before)}" if rule and manifest.robust.before else ""
    return f"up to {show.share(manifest.byzantine_fraction)} Byzantine members{rule}{before}"
