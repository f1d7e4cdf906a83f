"""Activation checkpointing gives bitwise equal gradients, retains less for the backward pass, and leaves the model unchanged."""

import copy

import pytest
import torch
from torch import nn

from starling.gossip.errors import ConfigError
from starling.gossip.vector import bind, layout
from starling.node.config.schema import NumericsSection
from starling.node.engine.activations import Checkpointed
from starling.node.engine.numerics import Gradients
from starling.node.tasks.gpt import Gpt


class Residual(nn.Module):
    """Blocks as in residual networks, with batch statistics and dropout."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(6, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 16)) for _ in range(4)
        )

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return x


def stack():
    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(6, 6), nn.Tanh())))


class Norm:
    """A scalar of the model's output."""

    def loss(self, model, batch):
        return (model(batch) ** 2).mean()


MODELS = {
    "blocks": (Residual, torch.randn(32, 6)),
    "sequence of blocks": (lambda: nn.Sequential(nn.Linear(6, 6), Residual(), Residual()), None),
    "layers": (stack, torch.randn(32, 6)),
    "gpt": (lambda: Gpt(16, 32, 4, 4, torch.Generator().manual_seed(0)), torch.randint(256, (4, 16))),
}


def computed(model, batch, **keys):
    """Return the gradient, the bytes of tensors that the forward pass retains for the backward pass, and the buffers after both."""
    x, gradient = bind(model, layout(model))
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    held = []

    class Watched(Norm):
        def loss(self, model, batch):
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = super().loss(model, batch)
            held.append(sum(kept.values()) - x.untyped_storage().nbytes())
            return loss

    gradients = Gradients(NumericsSection(**keys), Watched(), model, "cpu")
    model.train()
    gradients.compute(batch, gradient, 7, lambda: None)
    return gradient, held[0], {name: buffer.clone() for name, buffer in model.named_buffers()}


@pytest.mark.parametrize("name", ["blocks", "layers", "gpt"])
def test_the_gradient_is_the_same_to_the_bit_and_half_as_much_or_less_is_kept(name):
    """With dropout, which draws the same values again, and running statistics, which are updated once."""
    make, batch = MODELS[name]
    model = make()
    plain, most, buffers = computed(copy.deepcopy(model), batch)
    ours, least, again = computed(copy.deepcopy(model), batch, activation_checkpointing=True)
    assert torch.equal(ours, plain)
    assert buffers.keys() == again.keys()
    assert all(torch.equal(buffers[each], again[each]) for each in buffers)
    assert least <= most / 2


def test_between_steps_the_model_is_unchanged():
    """Otherwise a copy that is evaluated would compute with the original's parameters."""
    model = Residual()
    checkpointed = Checkpointed(model)
    with checkpointed.forward():
        assert any("forward" in vars(module) for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


def test_after_an_error_the_model_is_unchanged():
    model = Residual()
    with pytest.raises(RuntimeError), Checkpointed(model).forward():
        model(torch.zeros(3, 5))
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(("name", "blocks"), [("blocks", 4), ("sequence of blocks", 2), ("layers", 1), ("gpt", 4)])
def test_blocks_are_the_outermost_members_of_lists(name, blocks):
    assert Checkpointed(MODELS[name][0]()).blocks == blocks


def test_a_model_without_blocks_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"activation_checkpointing: Linear has no blocks.*micro_batch") as error:
        Checkpointed(nn.Linear(2, 2))
    assert "\n" not in str(error.value)


def test_a_model_of_transformers_checkpoints_itself():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=256, n_positions=16, n_embd=32, n_layer=3, n_head=2, use_cache=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)

    class Logits(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(input_ids=x).logits

    plain, most, _ = computed(Logits(copy.deepcopy(model)), MODELS["gpt"][1])
    ours, least, _ = computed(Logits(model), MODELS["gpt"][1], activation_checkpointing=True)
    torch.testing.assert_close(ours, plain)
    assert least < most
