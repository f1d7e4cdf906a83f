"""A swarm whose matrices live on an accelerator."""

import numpy as np
import pytest
import torch

from starling.gossip.api import Phase
from starling.gossip.compress.quantize import Float32, Fp16, Int4
from starling.gossip.compress.select.coordinates import Everything, Mask, TopK
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.exchange_codec import ExchangeCodec
from starling.gossip.overlay.static import Ring
from starling.node.simulate.matrix.faults import Change, exchange_faults
from starling.node.simulate.matrix.schedule import Schedule
from starling.node.simulate.matrix.swarm import Swarm
from starling.node.simulate.schema import FaultsSection
from starling.robust.clip import clip

PEERS, DIM = tuple("fbdace"), 150
PARAMS = {"pet": {"kappa": 0.3, "flow_limit": 1.0}, "choco": {"gamma": 0.3}}


def walk(device, name, selector, response):
    chance = torch.Generator().manual_seed(2)
    b = torch.randn(len(PEERS), DIM, generator=chance).to(device)
    swarm = Swarm(
        PEERS,
        torch.zeros(len(PEERS), DIM, device=device),
        MIXERS[name](**PARAMS.get(name, {})),
        ExchangeCodec(Fp16() if response == "int4" else Float32(), Int4() if response == "int4" else Float32(), 1.0, clip),
        selector,
        1,
        torch.ones(len(PEERS), dtype=torch.bool),
    )
    schedule = Schedule(Ring(), PEERS, b"")
    for number in range(4):
        met = schedule.at(number, swarm.alive.numpy())
        swarm.round(
            Phase(number, 1.0, 0.1),
            lambda rows, _r, _n, x, correct: x - 0.1 * correct(x - b[rows.to(device)]),
            1,
            met,
            exchange_faults(FaultsSection(loss=0.2, tries=1), 1, number, len(met)),
        )
        if number == 2:
            swarm.change(Change(crashed=(1,)))
    assert swarm.x.device.type == torch.device(device).type
    return swarm.x[swarm.alive.to(device)].cpu()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")
@pytest.mark.parametrize("selector", [Everything(), Mask(0.3), TopK(0.2)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(("name", "response"), [("pet", "int4"), ("gradient_tracking", "int4"), ("choco", "int4"), ("push_sum", "exact")])
def test_a_swarm_on_an_accelerator_agrees_with_one_on_the_processor(name, response, selector):
    """Random numbers are drawn on the processor, so only the last bits of sums may differ, and with them an occasional rounding."""
    torch.testing.assert_close(walk("cuda", name, selector, response), walk("cpu", name, selector, response), rtol=0.0, atol=1e-2)


def test_the_same_story_on_the_processor_moves_every_model():
    """So the comparison on an accelerator is not vacuous."""
    assert np.all(walk("cpu", "pet", Mask(0.3), "int4").abs().amax(1).numpy() > 0.1)
