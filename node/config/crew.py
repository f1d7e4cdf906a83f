"""Rules for crews (`crew.stages` > 1), and how the model is cut. Torch-free.

One bad stage is a bad crew: of crews of N machines, of which a share p is bad, 1 − (1 − p)^N are. Inside a crew nothing is checked that
would have to be computed twice, so a crew is for people who know each other.
"""

import math
from collections.abc import Sequence

from starling.gossip.errors import ConfigError
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.pipeline.cut import cut
from starling.node.catalogues import TASKS
from starling.node.config.schema import CrewSection, Manifest, NodeConfig, NumericsSection
from starling.node.status.format import size as shown

HELD = 24  # least bytes per parameter at a stage: model, gradient, moments, the copy of another stage's state
STAGED = frozenset({"text", "digits"})


def bad_crews(stages: int, share: float) -> float:
    """Return the share of crews with a bad machine, if this share of machines is bad."""
    return 1.0 - math.pow(1.0 - share, stages)


def tolerable(stages: int, share: float = 0.2) -> float:
    """Return the largest share of bad machines with which no more than this share of crews is bad."""
    return 1.0 - math.pow(1.0 - share, 1.0 / stages)


def check(manifest: Manifest) -> None:
    """Raise ConfigError where crews cannot work, or what is set would be ignored."""
    crew, mix, pace = manifest.crew, manifest.mix, manifest.pace
    if crew.stages == 1:
        if crew != CrewSection():
            raise ConfigError("crew.stages: must be at least 2, a crew of one is a node; try `--set crew.stages=2`, or leave out [crew]")
        return
    if manifest.preset == "open":
        raise ConfigError(
            f"crew.stages: must be 1 with preset=open, got {crew.stages}: one bad machine makes a crew bad, so with a fifth of machines "
            f"bad {100 * bad_crews(crew.stages, 0.2):.0f} % of crews are, and rules stand 20 %, which {100 * tolerable(crew.stages):.1f} % "
            "of bad machines reach; try `--preset vouched`"
        )
    if pace.kind != "steps" or pace.overlap:
        raise ConfigError("crew.stages: a crew does rounds, one thing at a time; try `--set pace.kind=steps --set pace.overlap=false`")
    facts = MIXERS.facts(mix.kind)
    if facts.gathers or facts.broadcasts or facts.swaps:
        raise ConfigError(f"mix.kind: {mix.kind} is of whole models, which no machine of a crew has; try `--set mix.kind=pet`")
    if pace.stop_after or pace.gossips > 1 or manifest.overlay.rerank_every or manifest.overlay.average_every:
        raise ConfigError(
            "crew.stages: not with pace.stop_after, pace.gossips, overlay.rerank_every or overlay.average_every in this version; leave "
            "them out"
        )
    section = manifest.optimizer
    if mix.kind == "seeds" or mix.personal or mix.turns or mix.own or section.sam or section.gradient != "plain":
        raise ConfigError(
            "crew.stages: not with mix.kind=seeds, mix.personal, mix.turns, mix.own, optimizer.sam or optimizer.gradient in this version; "
            "leave them out"
        )
    if mix.typical_samples is not None:
        raise ConfigError("mix.typical_samples: only the first stage of a crew knows how many samples it has; leave it out")
    if manifest.task.start:
        raise ConfigError("task.start: a crew begins with a random model in this version; leave it out, or `--set crew.stages=1`")
    if manifest.task.kind in TASKS.built_in and manifest.task.kind not in STAGED:
        raise ConfigError(f"crew.stages: {manifest.task.kind} is not cut into blocks; try one of {', '.join(sorted(STAGED))}")
    if manifest.task.kind == "text" and manifest.task.params().get("tied", True):
        raise ConfigError(
            "task.tied: must be false in a crew, as a tied table would be on the first and the last machine; try `--set task.tied=false`"
        )
    if manifest.task.batch_size < crew.micro_batches:
        raise ConfigError(
            f"crew.micro_batches: must be <= task.batch_size = {manifest.task.batch_size}, got {crew.micro_batches}; "
            f"try `--set crew.micro_batches={manifest.task.batch_size}`"
        )
    for key in ("speeds", "memory_gb"):
        if (given := len(getattr(crew, key))) not in {0, crew.stages}:
            raise ConfigError(f"crew.{key}: must be one number for each of {crew.stages} stages, got {given}; or leave it out")


def check_node(config: NodeConfig, manifest: Manifest) -> None:
    """Raise ConfigError where a node's settings do not fit a crew."""
    if manifest.crew.stages == 1:
        if config.stage >= 0:
            raise ConfigError(f"stage: this swarm has no crews, got {config.stage}; leave it out, `--set stage=-1`")
        return
    if config.stage >= manifest.crew.stages:
        raise ConfigError(f"stage: must be < crew.stages = {manifest.crew.stages}, got {config.stage}; try `--stage auto`")
    refused = {
        "privacy.noise": config.privacy.noise,
        "privacy.exchange_noise": config.privacy.exchange_noise,
        "attack": config.attack,
        "ranks": config.ranks > 1,
        "numerics": config.numerics != NumericsSection(),
        "evaluate_alone": config.evaluate_alone,
    }
    for key, given in refused.items():
        if given:
            raise ConfigError(f"{key}: not in a crew in this version; leave it out")


def ends(crew: CrewSection, parameters: Sequence[int], item_bytes: int = 4) -> tuple[int, ...]:
    """Return where each stage's blocks end, given the parameters of each block. Raises ConfigError: no cut fits."""
    if len(parameters) < crew.stages:
        raise ConfigError(f"crew.stages: must be <= {len(parameters)}, the blocks of the model, got {crew.stages}")
    each = HELD * item_bytes // 4

    def fits(stage: int, first: int, end: int) -> bool:
        return not crew.memory_gb or each * sum(parameters[first:end]) <= 1e9 * crew.memory_gb[stage]

    found = cut(parameters, crew.speeds or (1.0,) * crew.stages, fits)
    if found is None:
        raise ConfigError(
            f"crew.memory_gb: no cut fits: the model takes {shown(each * sum(parameters))} for its parameters alone, a block up to "
            f"{shown(each * max(parameters))}; take machines with more, or more of them"
        )
    return found
