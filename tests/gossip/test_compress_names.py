"""The torch-free names that manifests are checked by are those of the catalogues."""

import torch

from gossip.compress import names
from gossip.compress.catalogue import QUANTIZERS, SELECTORS, quantizer


def test_names_are_those_of_the_catalogues():
    assert SELECTORS.keys() == set(names.SELECTORS)
    assert QUANTIZERS.keys() == set(names.QUANTIZERS)


def test_expansive_codecs_are_just_those_that_no_feedback_loop_stands():
    expansive = {name for name in QUANTIZERS if quantizer(name, torch.float32).omega >= 1.0}
    assert names.EXPANSIVE.keys() == expansive
    assert not expansive & set(names.EXPANSIVE.values())
