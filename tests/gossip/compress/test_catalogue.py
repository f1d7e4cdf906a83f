"""What the tables say of codecs is so."""

import pytest
import torch

from starling.gossip.compress.catalogue import QUANTIZERS, quantizer
from starling.gossip.rng import generator


@pytest.mark.parametrize("name", sorted(QUANTIZERS))
def test_codecs_that_draw_are_those_whose_bytes_differ_with_the_chance(name):
    values = torch.linspace(-1.0, 1.0, 200)
    codec = quantizer(name, torch.float32)
    assert QUANTIZERS.facts(name).random == (codec.encode(values, generator(0)) != codec.encode(values, generator(1)))


def test_expansive_codecs_are_just_those_that_no_feedback_loop_stands():
    expansive = {name for name in QUANTIZERS if quantizer(name, torch.float32).omega >= 1.0}
    assert {name for name in QUANTIZERS if QUANTIZERS.facts(name).instead} == expansive
    assert not expansive & {QUANTIZERS.facts(name).instead for name in QUANTIZERS}
