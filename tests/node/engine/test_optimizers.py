"""Flat optimisers against the reference ones, and rates that never reach zero."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from starling.gossip.errors import ConfigError
from starling.gossip.vector import bind, layout
from starling.node.catalogues import OPTIMIZERS
from starling.node.config.schema import Manifest, MixSection, OptimizerSection
from starling.node.engine.corrections import Corrections, clipped
from starling.node.engine.flat_optimizer import Optimizer
from starling.node.engine.optimizers import FUSED, NOT_BY_ROWS, corrects_updates, optimizer
from starling.node.engine.pieces import hidden_matrices
from starling.node.engine.schedules import CLIMB, Schedule, phase, ramp, schedule
from starling.node.engine.skip_dynamo import bare
from starling.node.tasks.gpt import Gpt
from starling.node.tasks.networks import mlp
from tests.harness.tasks import seeded

SECTIONS = {
    "sgd": OptimizerSection(momentum=0.9, weight_decay=0.01),
    "adamw": OptimizerSection(kind="adamw", weight_decay=0.01, beta_2=0.99),
    "rmsprop": OptimizerSection(kind="rmsprop", alpha=0.9, centered=True),
    "nesterov": OptimizerSection(momentum=0.5, nesterov=True),
} | {kind: OptimizerSection(kind=kind) for kind in OPTIMIZERS.built_in if kind not in {"sgd", "adamw", "rmsprop", "muon"}}
REFERENCES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1.0, weight_decay=0.01, betas=(0.9, 0.99)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1.0, alpha=0.9, centered=True),
    "nesterov": lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.5, nesterov=True),
}
NOT_FLAT = {"lbfgs", "sparseadam"}  # needs a closure; needs sparse gradients
TORCH = {
    name.lower(): made
    for name, made in vars(torch.optim).items()
    if isinstance(made, type) and issubclass(made, torch.optim.Optimizer) and made is not torch.optim.Optimizer
}


@pytest.mark.parametrize("kind", sorted(SECTIONS.keys() - {"nesterov"}))
def test_a_bare_step_equals_the_optimiser_s_own_bit_for_bit(kind):
    """Only torch's profiling and hooks are skipped."""
    chance, models = torch.Generator().manual_seed(1), []
    gradients = torch.randn(4, 6, 5, generator=chance)
    for plain in (True, False):
        weight = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 30).view(6, 5))
        made = TORCH[kind]([weight], lr=0.1)
        step = made.step if plain else bare(made)
        for gradient in gradients:
            weight.grad = gradient.clone()
            step()
        models.append(weight.detach())
    assert torch.equal(*models)
    assert not torch.equal(models[0], torch.linspace(-1.0, 1.0, 30).view(6, 5))


def test_an_owners_optimiser_is_stepped_with_its_hooks():
    class Own(torch.optim.SGD):
        """An optimiser class of the owner's."""

    weight, called = torch.nn.Parameter(torch.ones(2)), []
    own = Own([weight], lr=0.1)
    own.register_step_post_hook(lambda *_: called.append(1))
    weight.grad = torch.ones(2)
    bare(own)()
    assert called == [1]


def test_every_optimiser_of_torch_that_can_step_a_flat_vector_has_its_name():
    """The daemon never imports torch and reads this table instead; a new version of torch may have more."""
    assert set(OPTIMIZERS.built_in) == TORCH.keys() - NOT_FLAT
    for kind in OPTIMIZERS.built_in:
        assert OPTIMIZERS.load(kind) is TORCH[kind]


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("kind", [kind for kind in SECTIONS if kind not in NOT_BY_ROWS])
def test_a_long_vector_is_stepped_in_blocks_with_the_same_bits(kind, clip_norm, monkeypatch):
    """So a step's extra memory does not grow with the model. Checkpoints are unaffected."""
    chance = torch.Generator().manual_seed(3)
    whole = torch.randn(1000, generator=chance)
    parts = whole.clone()
    section = structs.replace(SECTIONS[kind], clip_norm=clip_norm)
    one, other = optimizer(section, whole), optimizer(section, parts)
    corrections = Corrections(clip_norm)
    for turn in range(4):
        gradient = torch.randn(1000, generator=chance)
        monkeypatch.setattr("starling.node.engine.stretches.STRETCH", 10_000)
        one.step(whole, corrections.corrected(gradient, lambda g: g)[0], 0.01)
        monkeypatch.setattr("starling.node.engine.stretches.STRETCH", 333)
        other.step(parts, corrections.corrected(gradient, lambda g: g)[0], 0.01)
        assert torch.equal(whole, parts), turn
        assert one.state_dict().keys() == other.state_dict().keys()
        for name, tensor in one.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name]), name
        if turn == 1:
            other = optimizer(section, parts)
            other.load(one.state_dict())


@pytest.mark.parametrize("decay", ["all", "matrices"])
@pytest.mark.parametrize("kind", sorted(FUSED))
def test_a_large_model_is_stepped_in_one_pass(kind, decay, monkeypatch):
    """It equals torch's loop over tensors but for rounding; their checkpoints are interchangeable."""
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
    section = structs.replace(SECTIONS[kind], decay=decay) if decay != "all" else SECTIONS[kind]
    dim = sum(each.numel() for each in model.parameters())
    chance = torch.Generator().manual_seed(3)
    one = torch.randn(dim, generator=chance)
    other = one.clone()
    plain = optimizer(section, one, model=model)
    monkeypatch.setattr("starling.node.engine.optimizers.LARGE", dim - 1)
    monkeypatch.setattr("starling.node.engine.stretches.STRETCH", 100)
    fused = optimizer(section, other, model=model)
    for turn in range(20):
        gradient = torch.randn(dim, generator=chance)
        plain.step(one, gradient, 0.01)
        fused.step(other, gradient, 0.01)
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
        if turn == 9:
            plain.load(fused.state_dict())
            fused.load(plain.state_dict())
    assert [plain.fused, fused.fused] == [False, True]
    monkeypatch.setattr("starling.node.engine.optimizers.LARGE", dim)
    assert not optimizer(section, other, model=model).fused


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
def test_plain_sgd_equals_its_formula_bit_for_bit(momentum):
    """m ← μm + g; x ← x − lr·m. Trajectories of whole nodes are compared with it."""
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
    """A node restarted from its checkpoint must equal one that never stopped."""
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


class Blocks(torch.nn.Module):
    """An embedding with its position, blocks with a norm and a convolution, and an output layer, tied or not."""

    def __init__(self, tied=False):
        super().__init__()
        nn = torch.nn
        self.embed = nn.Embedding(7, 6)
        self.position = nn.Parameter(torch.zeros(4, 6))
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.Conv1d(6, 6, 3)) for _ in "ab")
        self.single = nn.Linear(6, 1)
        self.head = nn.Linear(6, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight


@pytest.mark.parametrize("tied", [False, True])
def test_muon_steps_weights_of_layers_except_embeddings_and_output(tied):
    """AdamW steps all others; checked for a GPT with a tied output layer and for a perceptron."""
    assert hidden_matrices(Blocks(tied)) == {f"blocks.{k}.{layer}.weight" for k in range(2) for layer in (1, 2)}
    gpt = Gpt(8, 16, 2, 2, seeded(0))
    named = {name for name, value in gpt.named_parameters() if name.startswith("blocks") and value.ndim > 1}
    assert hidden_matrices(gpt) == named
    assert len(named) == 8
    assert hidden_matrices(mlp(4, 3, 2, seeded(0))) == {"0.weight"}


@pytest.mark.parametrize("kind", sorted({*OPTIMIZERS.built_in} - {"rprop", "adafactor", "asgd", "muon"}))
def test_groups_on_the_flat_vector_are_torch_s_groups_of_parameters(kind):
    """Weight decay for matrices only; every optimiser agrees bit for bit with torch on the model itself."""
    ours, theirs = Blocks(), Blocks()
    theirs.load_state_dict(ours.state_dict())
    x, gradient = bind(ours, layout(ours))
    section = OptimizerSection(kind=kind, weight_decay=0.1, decay="matrices")
    stepping = optimizer(section, x, model=ours)
    keys = {key: value for key, value in section.params().items() if key not in {"decay", "beta_1", "beta_2"}}
    groups = [
        {"params": [p for p in theirs.parameters() if p.ndim > 1]},
        {"params": [p for p in theirs.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    reference = OPTIMIZERS[kind](groups, lr=0.1, **keys)
    chance = seeded(0)
    for _ in range(4):
        gradient.copy_(torch.randn(x.numel(), generator=chance))
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.grad = one.grad.clone()
        stepping.step(x, gradient, 0.1)
        reference.step()
    assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_muon_and_adamw_steps_equal_those_of_torch(decay):
    ours, theirs = Blocks(), Blocks()
    theirs.load_state_dict(ours.state_dict())
    x, gradient = bind(ours, layout(ours))
    stepping = optimizer(OptimizerSection(kind="muon", weight_decay=0.1, decay=decay), x, model=ours)
    hidden, rest = [], []
    for name, parameter in theirs.named_parameters():
        flat = torch.nn.Parameter(parameter.data.view(len(parameter), -1)) if parameter.ndim > 1 else parameter
        (hidden if name in hidden_matrices(theirs) else rest).append((flat, parameter))
    decays = [[p for p, _ in rest if p.ndim > 1 or decay == "all"], [p for p, _ in rest if p.ndim < 2 and decay != "all"]]
    groups = [{"params": given, "weight_decay": w} for given, w in zip(decays, (0.1, 0.0), strict=True) if given]
    torches = [
        torch.optim.Muon([p for p, _ in hidden], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, lr=0.1),
    ]
    chance = seeded(0)
    for _ in range(4):
        gradient.copy_(torch.randn(x.numel(), generator=chance))
        named = dict(ours.named_parameters())
        for name, parameter in theirs.named_parameters():
            for flat, own in hidden + rest:
                if own is parameter:
                    flat.grad = named[name].grad.clone().view_as(flat)
        stepping.step(x, gradient, 0.1)
        for each in torches:
            each.step()
    assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("damage", ["missing", "longer", "double"])
def test_a_mismatched_memory_is_refused_without_a_change(kind, damage):
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
    kind=st.sampled_from(["constant", "cosine", "linear", "exponential"]),
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
def test_the_rate_rises_only_in_warmup(schedule, round):
    if round + 1 < schedule.warmup * schedule.rounds:
        assert schedule.at(round) < schedule.at(round + 1)
    elif round >= schedule.warmup * schedule.rounds:
        assert schedule.at(round + 1) <= schedule.at(round) * (1 + 1e-12)


@pytest.mark.parametrize("kind", SECTIONS)
@pytest.mark.parametrize("round", [0, 30, 99])
def test_eta_c_is_the_step_per_unit_of_correction(kind, round):
    """With zero gradients, in the long run, once momentum has built up: lr/(1 − momentum) for sgd, lr for all others."""
    section, rates, x = SECTIONS[kind].changed(lr=0.02), Schedule("cosine", 0.02, 100), torch.zeros(1)
    on_updates = section.kind != "sgd"
    ours, corrections = optimizer(section, x, weighs_updates=on_updates), Corrections(None, on_updates, on_updates)
    for _ in range(300):
        direction, shift = corrections.corrected(torch.zeros(1), lambda gradient: gradient - 1.0)
        ours.step(x.zero_(), direction, rates.at(round), shift)
    assert float(x) == pytest.approx(phase(section, rates, round, 5.0).lr, rel=1e-3)


@pytest.mark.parametrize(("momentum", "memory"), [(0.0, 1.0), (0.9, 10.0)])
def test_a_phase_of_sgd_has_the_effective_rates_of_its_round_and_of_the_run(momentum, memory):
    """The run's highest rate excludes a late joiner's ramp, so both ends have the same bound of the gain."""
    section, rates = OptimizerSection(momentum=momentum), Schedule("cosine", 0.02, 100, floor=0.01)
    for number in (0, 50, 100):
        now = phase(section, rates, number, 5.0)
        assert now.lr == pytest.approx(memory * rates.at(number))
        assert now.highest_lr == pytest.approx(memory * 0.02)
        assert now.climb == CLIMB
    ramped = phase(section, rates, 0, 5.0, 0.5)
    assert (ramped.lr, ramped.highest_lr) == (pytest.approx(memory * 0.01), pytest.approx(memory * 0.02))


def test_other_optimisers_gain_uses_the_highest_rate_without_a_memory_of_corrections():
    section, rates = OptimizerSection(kind="adamw"), Schedule("cosine", 0.02, 100)
    for number in (0, 50, 100):
        now = phase(section, rates, number, 5.0)
        assert (now.lr, now.highest_lr, now.climb) == (rates.at(number), 0.02, 1.0)


@pytest.mark.parametrize(
    ("optimizer_kind", "mix", "updates"),
    [
        ("sgd", "pet", False),
        ("adamw", "moments", False),
        ("adamw", "k_gt", True),
        ("adamw", "gradient_tracking", False),
        ("sgd", "k_gt", False),
    ],
)
def test_updates_are_corrected_where_the_mixing_algorithm_knows_rates_and_the_optimiser_is_not_sgd(optimizer_kind, mix, updates):
    manifest = Manifest(optimizer=OptimizerSection(kind=optimizer_kind), mix=MixSection(kind=mix))
    assert corrects_updates(manifest) == updates


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_corrected_update_is_the_optimiser_s_minus_the_rate_times_the_correction(kind):
    """The optimiser's memory excludes the correction; without one the update is bitwise its own."""
    chance = seeded(0)
    c, x = torch.randn(7, generator=chance), torch.randn(7, generator=chance)
    plain, idle, corrected = (optimizer(SECTIONS[kind], x, weighs_updates=updates) for updates in (False, True, True))
    corrections = Corrections(None, True, True)
    for step in range(5):
        gradient, lr, same, other = torch.randn(7, generator=chance), 0.01 / (step + 1), x.clone(), x.clone()
        plain.step(x, gradient, lr)
        direction, shift = corrections.corrected(gradient, lambda given: given - torch.zeros(7))
        idle.step(same, direction, lr, shift)
        direction, shift = corrections.corrected(gradient, lambda given: given - c)
        corrected.step(other, direction, lr, shift)
        assert torch.equal(same, x)
        torch.testing.assert_close(other, x + lr * c)


@given(scale=st.floats(1e-3, 1e3), norm=st.floats(1e-2, 1e2), rows=st.booleans())
def test_a_clipped_gradient_is_as_torch_clips_it_and_keeps_its_direction(scale, norm, rows):
    gradient = torch.randn((3, 17) if rows else (17,), generator=seeded(0)) * scale
    before = gradient.clone()
    ours = clipped(gradient, norm)
    assert torch.equal(gradient, before)
    for own, given_ in zip(ours.reshape(-1, 17), gradient.reshape(-1, 17), strict=True):
        theirs = torch.nn.Parameter(torch.zeros(17))
        theirs.grad = given_.clone()
        torch.nn.utils.clip_grad_norm_([theirs], norm)
        torch.testing.assert_close(own, theirs.grad, rtol=1e-4, atol=0.0)
        if float(given_.norm()) < 0.999 * norm:
            assert torch.equal(own, given_)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_clipping_keeps_non_finite_gradients_visible(bad):
    """Such a step must be undone, not taken along its finite remainder."""
    assert not torch.isfinite(clipped(torch.tensor([1.0, bad]), 1.0)).all()


@pytest.mark.parametrize("corrects_updates", [False, True])
def test_gradients_are_clipped_before_they_are_corrected(corrects_updates):
    """Clipping g − c would change the sum of corrections over the swarm, which is zero."""
    c, seen = torch.tensor([30.0, 40.0]), []

    def correct(gradient):
        seen.append(gradient)
        return gradient - c

    ours = Corrections(1.0, corrects_updates, corrects_updates)
    direction, shift = ours.corrected(torch.tensor([3.0, 4.0]), correct)
    own = torch.tensor([0.6, 0.8])
    if corrects_updates:
        torch.testing.assert_close((direction, shift), (own, -c))
    else:
        torch.testing.assert_close((seen[0], direction), (own, own - c))


@pytest.mark.parametrize("kind", SECTIONS)
def test_every_optimiser_reduces_the_loss_and_does_not_modify_the_gradient(kind):
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
        (lambda x: optimizer(OptimizerSection(kind="rprop", decay="matrices"), x), "decay: rprop has no such key"),
        (lambda x: optimizer(OptimizerSection(kind="muon"), x), "kind: muon needs the shapes"),
        (lambda x: optimizer(OptimizerSection(decay="matrices"), x), "decay: matrices needs the shapes"),
        (lambda x: optimizer(OptimizerSection(kind="muon"), x, model=torch.nn.Linear(2, 1)), "kind: muon .* has none besides embeddings"),
        *(
            (lambda x, made=TORCH[kind]: Optimizer(lambda p: [made(p)], x), "kind: it cannot step a flat vector")
            for kind in sorted(NOT_FLAT & TORCH.keys())
        ),
    ],
)
def test_unusable_optimiser_settings_are_configuration_errors(make, words):
    with pytest.raises(ConfigError, match=rf"optimizer\.?{words}"):
        make(torch.ones(3))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (Schedule("cosine", 0.02, 200, floor=0.05), {0: 0.02, 100: 0.02 * 0.525, 200: 0.001, 10_000: 0.001}),
        (Schedule("linear", 0.02, 200, floor=0.05), {0: 0.02, 100: 0.02 * 0.525, 200: 0.001, 10_000: 0.001}),
        (Schedule("exponential", 0.02, 200, floor=0.01), {0: 0.02, 100: 0.002, 200: 0.0002, 10_000: 0.0002}),
        (Schedule("linear", 1.0, 100, warmup=0.1, floor=0.1), {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 55: 0.55}),
        *(
            (schedule(OptimizerSection(schedule=kind, lr=0.3, warmup=0.5), 0), {0: 0.3, 10**6: 0.3})
            for kind in ("constant", "cosine", "linear")
        ),
    ],
)
def test_a_schedule_warms_up_declines_to_its_floor_and_is_constant_in_an_endless_run(rate, expected):
    assert {number: rate.at(number) for number in expected} == pytest.approx(expected)


def test_a_late_joiner_s_rate_rises_to_the_full_rate():
    assert [ramp(rounds, 4) for rounds in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert ramp(0, 0) == 1.0
