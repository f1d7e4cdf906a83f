"""The torch-free names that manifests are checked by are those of the catalogues."""

import pytest
import torch

from starling.gossip.compress import names
from starling.gossip.compress.catalogue import QUANTIZERS, SELECTORS, quantizer
from starling.gossip.rng import generator


def test_names_are_those_of_the_catalogues():
    assert SELECTORS.keys() == set(names.SELECTORS)
    assert QUANTIZERS.keys() == set(names.QUANTIZERS)


@pytest.mark.parametrize("name", sorted(QUANTIZERS))
def test_codecs_that_draw_are_those_whose_bytes_differ_with_the_chance(name):
    values = torch.linspace(-1.0, 1.0, 200)
    codec = quantizer(name, torch.float32)
    assert (name in names.CHANCY) == (codec.encode(values, generator(0)) != codec.encode(values, generator(1)))


def test_expansive_codecs_are_just_those_that_no_feedback_loop_stands():
    expansive = {name for name in QUANTIZERS if quantizer(name, torch.float32).omega >= 1.0}
    assert names.EXPANSIVE.keys() == expansive
    assert not expansive & set(names.EXPANSIVE.values())
