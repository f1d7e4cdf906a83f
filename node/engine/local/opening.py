"""From the call that opens an engine to a trainer: every choice that the manifest and the node's settings make for local steps.

Shapes: d parameters.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from msgspec import structs
from torch import Generator

from starling.gossip.errors import ConfigError
from starling.gossip.mix.seeds import Seeds
from starling.gossip.replica import Replica
from starling.gossip.rng import generator
from starling.node.config import consent
from starling.node.config.schema import Manifest, NumericsSection
from starling.node.config.weight import weight
from starling.node.engine.ahead import looks_ahead
from starling.node.engine.crew.cut import Cut
from starling.node.engine.crew.stage import stage_of
from starling.node.engine.crew.states import KeptStates
from starling.node.engine.island import Island
from starling.node.engine.local.correction import correction_of
from starling.node.engine.local.gradient_source import (
    Batch,
    GradientSource,
    IslandBatch,
    LookAhead,
    MeasuredBatch,
    Optimistic,
    Private,
    Windowed,
)
from starling.node.engine.local.guard import Guard
from starling.node.engine.local.hooked_step import HookedSource, HookedStep, refuse_hooks
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.local.local_step import Chance, Descent, GradientStep, LocalStep, SeedsStep
from starling.node.engine.local.placing import island_of, machine_of, model_of, rehearsal_batch
from starling.node.engine.local.rates import Rates
from starling.node.engine.local.replicas import replica_of
from starling.node.engine.local.stage_calls import StageCalls
from starling.node.engine.local.task_trainer import Means, TaskTrainer
from starling.node.engine.local.trainer import CrewFacts
from starling.node.engine.memories import remembered
from starling.node.engine.noise_scale import NoiseScale
from starling.node.engine.numerics import Gradients
from starling.node.engine.optimizers import optimizer_of
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.privacy.dp_sgd import PrivateGradients
from starling.node.engine.vectors import GradientWindow
from starling.node.rpc.calls import Open
from starling.node.tasks.api import Stepped, Task

SPENT = ".privacy.json"  # beside the checkpoint, which ends in something else


def trainer_of(opening: Open, csprng: Csprng, window: GradientWindow) -> TaskTrainer:
    """Make task, data, model and replica, and what does local steps. `window`: open while a large model's gradient is computed.

    Raises ConfigError: the manifest or the node's settings cannot be used on this machine.
    """
    manifest = opening.manifest
    if opening.stage >= 0:  # a gradient is shortened by what all stages have of it
        manifest = structs.replace(manifest, optimizer=manifest.optimizer.changed(clip_norm=None))
    consent.find(manifest, opening.code)
    machine = machine_of(opening, manifest)
    model, cut = model_of(opening, manifest, machine)
    stepped = _stepped(opening, manifest, model.task)
    model.bind()
    gradients, noise = _gradients(opening, model)
    ranks = island_of(opening, model)
    private = _private(opening, model, csprng)
    replica = replica_of(opening, model)
    if private is not None and manifest.mix.own:
        raise ConfigError(
            "mix.own: the share of an exchange that a node takes tells of samples, without noise; must be 0 with privacy.noise"
        )
    counts = weight(manifest, model.data.samples)
    moments = opening.numerics.moments
    descent = Descent(
        lambda: optimizer_of(manifest, model.trained, model.module, moments), counts, _chance(manifest, opening)
    )
    replica.remembered = remembered(opening, replica, descent.chance, lambda: descent.optimizer, gradients.notes)
    _check_ahead(opening, manifest)
    guard, rates = Guard(model), Rates(manifest)
    step: LocalStep
    if isinstance(replica.mixer, Seeds):
        step = SeedsStep(model, replica, replica.mixer, rates)
    else:
        batch = _batch(model, gradients, guard, ranks, noise)
        source = _source(model, replica, rates, batch, window if long_steps(model, ranks) else None)
        if private is not None:
            source = Private(private, model)
        elif stepped is not None:
            if model.binding.after_backward:
                refuse_hooks(
                    stepped, "task.kind", "gradients of models in less than float32 are not those of parameters"
                )
            source = HookedSource(source, stepped, model.module)
        correction = correction_of(manifest, replica, counts)
        step = GradientStep(model, source, correction, descent, guard, rates)
    means = Means(gradients, noise, private, descent, ranks)
    whole = step if stepped is None else HookedStep(step, stepped, model, manifest.task.batch_size)
    trainer = TaskTrainer(model, replica, whole, guard, rates, means)
    if cut is not None:
        assert isinstance(step, GradientStep)
        _stage(opening, trainer, step, cut)
    return trainer


def _stepped(opening: Open, manifest: Manifest, task: Task) -> Stepped | None:
    """Return the task, if it does something around steps. Raises ConfigError: it has hooks that these steps have no place for."""
    if not isinstance(task, Stepped):
        return None
    for asked, key, steps in (
        (opening.privacy.noise, "privacy.noise", "gradients are of single samples"),
        (manifest.mix.kind == "seeds", "mix.kind", "steps of seeds compute losses and no gradient"),
        (opening.ranks > 1, "ranks", "other processes compute parts of each batch"),
    ):
        if asked:
            refuse_hooks(task, key, steps)
    return task


def _gradients(opening: Open, model: LocalModel) -> tuple[Gradients, NoiseScale | None]:
    numerics = opening.numerics
    gradients = Gradients(numerics, model.task, model.module, model.device, binding=model.binding)
    if opening.privacy.noise and numerics != NumericsSection():
        raise ConfigError(
            "numerics: with privacy.noise gradients are of single samples, in float32 and in chunks that fit; leave its keys out"
        )
    if numerics.micro_batch is not None or numerics.noise_every is not None:
        gradients.check(rehearsal_batch(model))
    if opening.ranks > 1:
        gradients.parts.check(rehearsal_batch(model), "ranks")
    return gradients, None if numerics.noise_every is None else NoiseScale(numerics.noise_every)


def _private(opening: Open, model: LocalModel, csprng: Csprng) -> PrivateGradients | None:
    if not opening.privacy.noise:
        return None
    model.side.keep_home()
    ledger = Path(opening.checkpoint).with_suffix(SPENT) if opening.checkpoint else None
    return PrivateGradients(opening.privacy, model, csprng, ledger)


def _check_ahead(opening: Open, manifest: Manifest) -> None:
    if opening.privacy.noise and (manifest.optimizer.sam or manifest.optimizer.gradient != "plain"):
        raise ConfigError(
            "privacy.noise: a second gradient, or an earlier one, in a step is not in its account; must be 0 with optimizer.sam and "
            "optimizer.gradient, or leave these out"
        )


def _chance(manifest: Manifest, opening: Open) -> Chance:
    """Return what rounds moments by chance, where they are kept in less than float32."""
    if opening.numerics.moments == "float32":
        return lambda _step: None

    def chance(step: int) -> Generator:
        return generator(manifest.seed, "moments", opening.node, step)

    return chance


def long_steps(model: LocalModel, ranks: Island | None) -> bool:
    """Return whether calls should not wait for a gradient: those of a large model take long. An island's ranks compute it in step."""
    return model.large and ranks is None


def _batch(
    model: LocalModel, gradients: Gradients, guard: Guard, ranks: Island | None, noise: NoiseScale | None
) -> Batch:
    if ranks is not None:
        return IslandBatch(model, ranks, gradients, guard.reset_buffers)
    compute = partial(gradients.compute, reset=guard.reset_buffers)
    return Batch(model, compute) if noise is None else MeasuredBatch(model, compute, noise, gradients.parts.shares)


def _source(
    model: LocalModel, replica: Replica, rates: Rates, batch: Batch, window: GradientWindow | None
) -> GradientSource:
    section = model.manifest.optimizer
    first: GradientSource = batch if window is None else Windowed(batch, window)
    if section.gradient == "optimistic":
        return Optimistic(first)
    return LookAhead(first, batch, replica, model, rates) if looks_ahead(section) else first


def _stage(opening: Open, trainer: TaskTrainer, step: GradientStep, cut: Cut) -> None:
    """Give a trainer what answers a crew's calls. States are kept beside the checkpoint."""
    stage = stage_of(trainer.model, opening.stage)
    states = KeptStates(opening.stage, Path(opening.checkpoint) if opening.checkpoint else None)
    trainer.calls = StageCalls(trainer, step, stage, states).handlers()
    trainer.facts = replace(
        trainer.facts, crew=CrewFacts(by_calls=True, batches=stage.batches, most_state_bytes=cut.most_state_bytes)
    )
