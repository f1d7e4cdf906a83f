"""The catalogue's facts about codecs hold."""

import pytest
import torch

from starling.gossip.compress.catalogue import QUANTIZERS, quantizer
from starling.gossip.rng import generator


@pytest.mark.parametrize("name", sorted(QUANTIZERS))
def test_random_codecs_are_those_whose_bytes_depend_on_the_generator(name):
    values = torch.linspace(-1.0, 1.0, 200)
    codec = quantizer(name, torch.float32)
    assert QUANTIZERS.facts(name).random == (codec.encode(values, generator(0)) != codec.encode(values, generator(1)))


def test_expansive_codecs_are_those_that_diverge_in_a_feedback_loop():
    expansive = {name for name in QUANTIZERS if quantizer(name, torch.float32).omega >= 1.0}
    assert {name for name in QUANTIZERS if QUANTIZERS.facts(name).instead} == expansive
    assert not expansive & {QUANTIZERS.facts(name).instead for name in QUANTIZERS}
