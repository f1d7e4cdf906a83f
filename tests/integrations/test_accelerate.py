"""A loop with Accelerate needs no integration: a Swarm takes its prepared model and optimizer."""

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

accelerate = pytest.importorskip("accelerate", reason="needs accelerate: pip install 'starling-swarm[accelerate]'")

from starling.gossip.mix.borne import correct, corrected, start  # noqa: E402
from starling.node.script.swarm import Swarm  # noqa: E402
from tests.integrations.nodes import Node, beside  # noqa: E402
from tests.node.script.loops import batches, flat, net, some  # noqa: E402

RATE, CLIP = 0.1, 0.5


def by_hand(c):
    """Return the parameters before each mix of two steps of 2 batches; the last step of an epoch of 7 has one batch, as with Accelerate."""
    model, before = net(), []
    state = corrected(start(flat(model)), c)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    data = list(batches(7))
    for step in range(4):
        for x, y in data[2 * step : 2 * step + 2]:
            (mse_loss(model(x), y) / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        g, state = correct(state, torch.cat([each.grad.reshape(-1) for each in model.parameters()]))
        for each, part in zip(model.parameters(), g.split([each.numel() for each in model.parameters()]), strict=True):
            each.grad.copy_(part.view_as(each))
        optimizer.step()
        optimizer.zero_grad()
        if step % 2:
            before.append(flat(model))
            torch.nn.utils.vector_to_parameters(0.5 * before[-1], model.parameters())
    return before


@pytest.mark.parametrize("early", [True, False], ids=["made before prepare", "made after it"])
def test_seven_batches_by_two_are_four_local_steps(tmp_path, monkeypatch, early):
    """Gradients are clipped and then corrected, with the same bits as by hand."""
    beside(monkeypatch)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    samples = TensorDataset(*(torch.cat(each) for each in zip(*batches(7), strict=True)))
    c = 0.01 * some(flat(model).numel())
    with Node(tmp_path, model, rounds=2, steps=2, optimizer="sgd", mix="pet", c=c) as node:
        if early:
            swarm = Swarm(tmp_path, model=model, optimizer=optimizer)
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(samples, batch_size=8))
        if not early:
            swarm = Swarm(tmp_path, model=model, optimizer=optimizer)
        assert not swarm.finished
        ended = []
        for at, (x, y) in enumerate(loader):
            with accelerator.accumulate(model):
                loss = mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
                if swarm.step(loss):
                    ended.append(at)
        swarm.close()
    assert ended == [3, 6]
    assert node.steps == 4
    for one, other in zip(node.before, by_hand(c), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(flat(model), node.after[-1])
