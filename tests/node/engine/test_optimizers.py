"""Flat optimisers against the reference ones, and rates that never reach zero."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.node.config.schema import OptimizerSection
from starling.node.engine.optimizers import AdamW, Schedule, Sgd, correction_lr, optimizer, ramp, schedule
from tests.harness.tasks import seeded


def run(make, steps: int = 60):
    """(flat vector, reference parameter) after the same directions and changing rates."""
    chance = seeded(0)
    x = torch.randn(37, generator=chance)
    reference = torch.nn.Parameter(x.clone())
    flat, torch_optimizer = make(x, [reference])
    for step in range(steps):
        direction, lr = torch.randn(37, generator=chance), 0.1 / (step + 1)
        flat.step(x, direction, lr)
        torch_optimizer.param_groups[0]["lr"] = lr
        reference.grad = direction.clone()
        torch_optimizer.step()
    return x, reference.detach()


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_does_what_torch_does(momentum, decay):
    x, reference = run(
        lambda x, p: (Sgd(x, momentum, decay), torch.optim.SGD(p, lr=1.0, momentum=momentum, weight_decay=decay))
    )
    assert torch.allclose(x, reference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_does_what_torch_does(decay):
    x, reference = run(lambda x, p: (AdamW(x, decay), torch.optim.AdamW(p, lr=1.0, weight_decay=decay)))
    assert torch.allclose(x, reference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_restored_optimiser_goes_on_bit_for_bit(kind):
    """A node that restarts from its checkpoint must not differ from one that never stopped."""
    section, chance = OptimizerSection(kind=kind, weight_decay=0.01), seeded(0)
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
def test_a_step_leaves_the_direction_alone(kind):
    """The direction belongs to the mixing algorithm."""
    x, direction = torch.ones(5), torch.arange(5.0)
    optimizer(OptimizerSection(kind=kind), x).step(x, direction, 0.1)
    assert direction.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("damage", ["missing", "longer", "double"])
def test_foreign_memory_is_refused_and_nothing_changed(kind, damage):
    own = optimizer(OptimizerSection(kind=kind), torch.ones(5))
    state = {name: tensor.clone() + 1 for name, tensor in own.state_dict().items()}
    name = next(iter(state))
    if damage == "missing":
        del state[name]
    else:
        state[name] = torch.zeros(6) if damage == "longer" else state[name].double()
    with pytest.raises(ValueError, match="optimizer state"):
        own.load(state)
    assert all(not tensor.any() for tensor in own.state_dict().values())


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


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_the_schedule_ends_at_the_floor_and_is_half_way_in_the_middle(kind):
    rate = Schedule(kind, 0.02, 200, floor=0.05)
    assert rate.at(0) == pytest.approx(0.02)
    assert rate.at(100) == pytest.approx(0.02 * 0.525)
    assert rate.at(200) == rate.at(10_000) == pytest.approx(0.001)


def test_warmup_reaches_full_rate_and_then_declines():
    rate = Schedule("linear", 1.0, 100, warmup=0.1, floor=0.1)
    assert [rate.at(r) for r in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert rate.at(55) == pytest.approx(0.55)


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear"])
def test_an_endless_run_keeps_its_rate(kind):
    assert schedule(OptimizerSection(schedule=kind, lr=0.3, warmup=0.5), 0).at(10**6) == 0.3


def test_a_late_joiner_climbs_to_the_full_rate():
    assert [ramp(rounds, 4) for rounds in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert ramp(0, 0) == 1.0


def test_the_correction_of_sgd_follows_the_rate():
    """A constant unit gradient moves a coordinate by lr / (1 − momentum) a step once momentum is full."""
    section = OptimizerSection(momentum=0.9)
    assert correction_lr(section, 0.02) == pytest.approx(0.2)
    sgd, x = Sgd(torch.zeros(1), 0.9), torch.zeros(1)
    for _ in range(300):
        before = float(x)
        sgd.step(x, torch.ones(1), 0.02)
    assert before - float(x) == pytest.approx(0.2, rel=1e-3)


def test_a_configured_correction_rate_is_taken_and_adamw_needs_one():
    assert correction_lr(OptimizerSection(kind="adamw", correction_lr=0.5), 1e-3) == 0.5
    assert correction_lr(OptimizerSection(correction_lr=0.5), 1e-3) == 0.5
    with pytest.raises(ConfigError, match=r"optimizer\.correction_lr: adamw needs a value > 0"):
        correction_lr(OptimizerSection(kind="adamw"), 1e-3)
