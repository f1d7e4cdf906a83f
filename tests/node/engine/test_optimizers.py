"""Flat optimisers against the reference ones, and rates that never reach zero."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.node.catalogues import OPTIMIZERS
from starling.node.config.schema import OptimizerSection
from starling.node.engine.optimizers import Optimizer, Schedule, correction_lr, optimizer, ramp, schedule
from tests.harness.tasks import seeded

SECTIONS = {
    "sgd": OptimizerSection(momentum=0.9, weight_decay=0.01),
    "adamw": OptimizerSection(kind="adamw", weight_decay=0.01, beta_2=0.99),
    "rmsprop": OptimizerSection(kind="rmsprop", alpha=0.9, centered=True),
    "nesterov": OptimizerSection(momentum=0.5, nesterov=True),
} | {kind: OptimizerSection(kind=kind) for kind in OPTIMIZERS.built_in if kind not in {"sgd", "adamw", "rmsprop"}}
REFERENCES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1.0, weight_decay=0.01, betas=(0.9, 0.99)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1.0, alpha=0.9, centered=True),
    "nesterov": lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.5, nesterov=True),
}
NOT_FLAT = {"lbfgs", "sparseadam", "muon"}  # a closure, sparse gradients, matrices
TORCH = {
    name.lower(): made
    for name, made in vars(torch.optim).items()
    if isinstance(made, type) and issubclass(made, torch.optim.Optimizer) and made is not torch.optim.Optimizer
}


def test_every_optimiser_of_torch_that_can_step_a_flat_vector_has_its_name():
    """The table stands in for torch, which the daemon never imports; a new torch may have more."""
    assert set(OPTIMIZERS.built_in) == TORCH.keys() - NOT_FLAT
    for kind in OPTIMIZERS.built_in:
        assert OPTIMIZERS.load(kind) is TORCH[kind]


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_manifest_s_keys_reach_the_class_of_torch(kind):
    chance = seeded(0)
    x = torch.randn(37, generator=chance)
    reference = torch.nn.Parameter(x.clone())
    ours, theirs = optimizer(SECTIONS[kind], x), REFERENCES[kind]([reference])
    for step in range(60):
        direction, lr = torch.randn(37, generator=chance), 0.1 / (step + 1)
        ours.step(x, direction, lr)
        theirs.param_groups[0]["lr"] = lr
        reference.grad = direction.clone()
        theirs.step()
    assert torch.equal(x, reference.detach())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_plain_sgd_is_its_formula_to_the_last_bit(momentum):
    """m ← μm + g; x ← x − lr·m: the trajectories of whole nodes are held against it."""
    chance = seeded(0)
    x = torch.randn(37, generator=chance)
    y, m = x.clone(), torch.zeros(37)
    ours = optimizer(OptimizerSection(momentum=momentum), x)
    for step in range(30):
        direction, lr = torch.randn(37, generator=chance), 0.1 / (step + 1)
        ours.step(x, direction, lr)
        m.mul_(momentum).add_(direction)
        y.sub_(m, alpha=lr)
    assert torch.equal(x, y)


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_restored_optimiser_goes_on_bit_for_bit(kind):
    """A node that restarts from its checkpoint must not differ from one that never stopped."""
    section, chance = SECTIONS[kind], seeded(0)
    x = torch.randn(11, generator=chance)
    one = optimizer(section, x)
    for _ in range(5):
        one.step(x, torch.randn(11, generator=chance), 0.1)
    two, y = optimizer(section, x), x.clone()
    two.load({name: tensor.clone() for name, tensor in one.state_dict().items()})
    direction = torch.randn(11, generator=chance)
    one.step(x, direction, 0.1)
    two.step(y, direction, 0.1)
    assert torch.equal(x, y)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("damage", ["missing", "longer", "double"])
def test_foreign_memory_is_refused_and_nothing_changed(kind, damage):
    own, x = optimizer(OptimizerSection(kind=kind), torch.ones(5)), torch.ones(5)
    own.step(x, torch.ones(5), 0.1)
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    state = {name: tensor + 1 for name, tensor in before.items()}
    name = next(name for name in state if state[name].dim())
    if damage == "missing":
        del state[name]
        state["foreign"] = torch.zeros(5)
    else:
        state[name] = torch.zeros(6) if damage == "longer" else state[name].double()
    with pytest.raises(ValueError, match="optimizer state"):
        own.load(state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())


schedules = st.builds(
    Schedule,
    kind=st.sampled_from(["constant", "cosine", "linear"]),
    lr=st.floats(1e-4, 1.0),
    rounds=st.integers(0, 500),
    warmup=st.floats(0, 0.99),
    floor=st.floats(0.01, 1.0),
)


@given(schedule=schedules, round=st.integers(0, 1000))
def test_the_rate_is_never_zero_and_never_above_lr(schedule, round):
    """The gain of the correction divides by it."""
    assert 0.0 < schedule.at(round) <= schedule.lr * (1 + 1e-12)


@given(schedule=schedules, round=st.integers(0, 1000))
def test_the_rate_climbs_in_warmup_and_never_again(schedule, round):
    if round + 1 < schedule.warmup * schedule.rounds:
        assert schedule.at(round) < schedule.at(round + 1)
    elif round >= schedule.warmup * schedule.rounds:
        assert schedule.at(round + 1) <= schedule.at(round) * (1 + 1e-12)


def test_the_correction_of_sgd_follows_the_rate():
    """A constant unit gradient moves a coordinate by lr / (1 − momentum) a step once momentum is full."""
    section = OptimizerSection(momentum=0.9)
    assert correction_lr(section, 0.02) == pytest.approx(0.2)
    sgd, x = optimizer(section, torch.zeros(1)), torch.zeros(1)
    for _ in range(300):
        before = float(x)
        sgd.step(x, torch.ones(1), 0.02)
    assert before - float(x) == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("kind", SECTIONS)
def test_every_optimiser_goes_downhill_and_leaves_the_direction_alone(kind):
    x = torch.ones(5)
    ours = optimizer(SECTIONS[kind], x)
    for _ in range(20):
        direction, before = x.clone(), x.clone()
        ours.step(x, direction, 0.05)
        assert torch.equal(direction, before)
    assert float(x.norm()) < 5**0.5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: optimizer(OptimizerSection(kind="sgdd"), x), "kind: 'sgdd' is unknown, choose one of .*adamw"),
        (lambda x: optimizer(OptimizerSection(momentums=1.0), x), "momentums: no such key"),
        (lambda x: optimizer(OptimizerSection(kind="adamw", eps=-1.0), x), ""),
        (lambda _: correction_lr(OptimizerSection(kind="adamw"), 1e-3), "correction_lr: adamw needs a value > 0"),
        *(
            (lambda x, made=TORCH[kind]: Optimizer(made, x), "kind: it cannot step a flat vector")
            for kind in sorted(NOT_FLAT & TORCH.keys())
        ),
    ],
)
def test_what_cannot_be_used_is_a_configuration_error(make, words):
    with pytest.raises(ConfigError, match=rf"optimizer\.?{words}"):
        make(torch.ones(3))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (Schedule("cosine", 0.02, 200, floor=0.05), {0: 0.02, 100: 0.02 * 0.525, 200: 0.001, 10_000: 0.001}),
        (Schedule("linear", 0.02, 200, floor=0.05), {0: 0.02, 100: 0.02 * 0.525, 200: 0.001, 10_000: 0.001}),
        (Schedule("linear", 1.0, 100, warmup=0.1, floor=0.1), {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 55: 0.55}),
        *(
            (schedule(OptimizerSection(schedule=kind, lr=0.3, warmup=0.5), 0), {0: 0.3, 10**6: 0.3})
            for kind in ("constant", "cosine", "linear")
        ),
    ],
)
def test_a_schedule_warms_up_declines_to_its_floor_and_is_constant_in_an_endless_run(rate, expected):
    assert {number: rate.at(number) for number in expected} == pytest.approx(expected)


def test_a_late_joiner_climbs_to_the_full_rate():
    assert [ramp(rounds, 4) for rounds in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert ramp(0, 0) == 1.0


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_configured_correction_rate_is_used(kind):
    assert correction_lr(OptimizerSection(kind=kind, correction_lr=0.5), 1e-3) == 0.5
