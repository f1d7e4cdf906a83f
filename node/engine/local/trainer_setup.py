"""Make a trainer as the Open call says: every choice of the manifest and the node's settings for local steps.

Shapes: d parameters.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Generator

from starling.gossip.errors import ConfigError
from starling.gossip.replica import Replica
from starling.gossip.rng import generator
from starling.node.config.schema import NumericsSection
from starling.node.config.weight import weight
from starling.node.engine.gradient_point import has_second_gradient
from starling.node.engine.local.correction import correction_of
from starling.node.engine.local.gradient_source import Batch, GradientSource, LookAhead, MeasuredBatch, Optimistic, Private, Windowed
from starling.node.engine.local.guard import Guard
from starling.node.engine.local.hooked_step import HookedSource, HookedStep, refuse_hooks, stepped_of
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.local.local_step import Chance, Descent, GradientStep, LocalStep
from starling.node.engine.local.placing import model_of, trial_batch
from starling.node.engine.local.rates import Rates
from starling.node.engine.local.replicas import replica_of
from starling.node.engine.local.task_trainer import Means, TaskTrainer
from starling.node.engine.memories import remembered
from starling.node.engine.noise_scale import NoiseScale, Unmeasured
from starling.node.engine.numerics import Gradients
from starling.node.engine.optimizers import optimizer_of
from starling.node.engine.privacy.accountant import Account, Unaccounted
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.privacy.dp_sgd import PrivateGradients
from starling.node.engine.vectors import GradientWindow
from starling.node.rpc.calls import Open
from starling.node.tasks.api import Stepped

SPENT = ".privacy.json"  # next to the checkpoint, which has another suffix
UNMEASURED, UNACCOUNTED = Unmeasured(), Unaccounted()


@dataclass(frozen=True, slots=True)
class Setup:
    """Parts that local steps of any kind need."""

    model: LocalModel
    gradients: Gradients
    replica: Replica
    descent: Descent
    guard: Guard
    rates: Rates


def trainer_of(open_request: Open, csprng: Csprng, window: GradientWindow) -> TaskTrainer:
    """Return a trainer along gradients that this process computes. `window`: open while a large model's gradient is computed.

    Raises ConfigError: the manifest or the node's settings cannot be used on this machine.
    """
    if open_request.privacy.noise:
        return _private_trainer(open_request, csprng)
    made = setup_of(open_request, model_of(open_request))
    compute, every = partial(made.gradients.compute, reset=made.guard.reset_buffers), open_request.numerics.noise_every
    noise: NoiseScale | Unmeasured = UNMEASURED
    batch = Batch(made.model, compute)
    if every is not None:
        noise = NoiseScale(every)
        batch = MeasuredBatch(made.model, compute, noise, made.gradients.parts.shares)
    first = Windowed(batch, window) if made.model.large else batch
    step = gradient_step(made, source_of(made, first, batch))
    return task_trainer(made, step, noise=noise, long_steps=made.model.large)


def _private_trainer(open_request: Open, csprng: Csprng) -> TaskTrainer:
    """Return a trainer along noised gradients of single samples."""
    _check_private(open_request)
    model = model_of(open_request)
    refuse_hooks(stepped_of(model.task), "privacy.noise", "gradients are of single samples")
    model.side.keep_home()
    made = setup_of(open_request, model)
    ledger = Path(open_request.checkpoint).with_suffix(SPENT) if open_request.checkpoint else None
    private = PrivateGradients(open_request.privacy, model, csprng, ledger)
    step = corrected_step(made, Private(private, model))
    return task_trainer(made, step, account=private.accountant, long_steps=model.large, hides=True)


def _check_private(open_request: Open) -> None:
    manifest = open_request.manifest
    if open_request.numerics != NumericsSection():
        raise ConfigError(
            "numerics: privacy.noise needs gradients of single samples, in float32 and in chunks that fit memory; leave its keys out"
        )
    if manifest.mix.own:
        raise ConfigError(
            "mix.own: the share of an exchange that a node takes depends on its samples, without noise; must be 0 with privacy.noise"
        )
    if manifest.optimizer.sam or manifest.optimizer.gradient != "plain":
        raise ConfigError(
            "privacy.noise: its account does not cover a second or an earlier gradient in a step; must be 0 with optimizer.sam and "
            "optimizer.gradient, or leave these out"
        )


def setup_of(open_request: Open, model: LocalModel) -> Setup:
    """Bind a model to its vector, and make its replica and optimiser. Raises ConfigError: they do not fit each other."""
    manifest, numerics = open_request.manifest, open_request.numerics
    model.bind()
    gradients = Gradients(numerics, model.task, model.module, model.device, binding=model.binding)
    gradients.check(lambda: trial_batch(model))
    replica = replica_of(open_request, model)
    descent = Descent(
        lambda: optimizer_of(manifest, model.trained, model.module, numerics.moments),
        weight(manifest, model.data.samples),
        _chance(open_request),
    )
    replica.remembered = remembered(open_request, replica, descent.chance, lambda: descent.optimizer, gradients.notes)
    return Setup(model, gradients, replica, descent, Guard(model), Rates(manifest))


def _chance(open_request: Open) -> Chance:
    """Return the generators for rounding moments that are stored in less than float32."""
    if open_request.numerics.moments == "float32":
        return lambda _step: None

    def chance(step: int) -> Generator:
        return generator(open_request.manifest.seed, "moments", open_request.node, step)

    return chance


def source_of(made: Setup, first: GradientSource, second: GradientSource) -> GradientSource:
    """Return the source of gradients that the manifest selects: `first`, and `second` where a step has two."""
    section = made.model.manifest.optimizer
    if section.gradient == "optimistic":
        return Optimistic(first)
    return LookAhead(first, second, made.replica, made.model, made.rates) if has_second_gradient(section) else first


def gradient_step(made: Setup, source: GradientSource) -> GradientStep:
    """Return steps along gradients of batches, with the task's hooks, if it has any."""
    model = made.model
    if isinstance(model.task, Stepped):
        if model.binding.after_backward:
            refuse_hooks(model.task, "task.kind", "gradients of models in less than float32 are not those of parameters")
        source = HookedSource(source, model.task, model.module)
    return corrected_step(made, source)


def corrected_step(made: Setup, source: GradientSource) -> GradientStep:
    """Return steps along gradients that the mixing algorithm corrects."""
    correction = correction_of(made.model.manifest, made.replica, made.descent.weight)
    return GradientStep(made.model, source, correction, made.descent, made.guard, made.rates)


def task_trainer(
    made: Setup,
    step: LocalStep,
    *,
    long_steps: bool,
    noise: NoiseScale | Unmeasured = UNMEASURED,
    account: Account = UNACCOUNTED,
    hides: bool = False,
) -> TaskTrainer:
    """Return a trainer that does these steps. `long_steps`: calls must not wait for a step; `hides` as of `Means`."""
    model = made.model
    if isinstance(model.task, Stepped):
        step = HookedStep(step, model.task, model, model.manifest.task.batch_size)
    means = Means(made.gradients, noise, account, made.descent, long_steps, hides)
    return TaskTrainer(model, made.replica, step, made.guard, made.rates, means)
