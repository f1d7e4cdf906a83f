"""The torch-free facts that manifests are checked by are those of the algorithms themselves."""

import inspect

import pytest

from starling.gossip.mix.catalogue import MIXERS, gathers, swaps
from starling.node.config.schema import Manifest, MixSection
from starling.node.engine.mixing import mixer


@pytest.mark.parametrize("kind", MIXERS)
def test_what_is_said_of_an_algorithm_is_so(kind):
    made, facts = mixer(Manifest(mix=MixSection(kind=kind))), MIXERS.facts(kind)
    assert made.asynchronous == facts.asynchronous
    assert made.static == facts.static
    assert swaps(made.edge) == facts.swaps
    assert gathers(made.edge) == facts.gathers
    assert getattr(made.edge, "exact", False) == facts.exact
    assert getattr(made.edge, "symmetric", False) == facts.symmetric


@pytest.mark.parametrize("kind", MIXERS)
def test_every_parameter_of_an_algorithm_is_a_key_of_the_manifest(kind):
    """With the same default, unless the algorithm leaves it to the manifest. A rule has a section of its own."""
    for name, parameter in inspect.signature(MIXERS[kind]).parameters.items():
        if name == "rule":
            assert MIXERS.facts(kind).gathers
            continue
        default = getattr(MixSection(), name)
        assert parameter.default in (parameter.empty, default)
