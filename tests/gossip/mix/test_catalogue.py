"""The torch-free facts that manifests are checked by are those of the algorithms themselves."""

import pytest

from starling.gossip.mix.catalogue import MIXERS, broadcasts, gathers, swaps
from starling.node.config.schema import Manifest, MixSection
from starling.node.engine.mixing import mixer


@pytest.mark.parametrize("kind", MIXERS)
def test_what_is_said_of_an_algorithm_is_so(kind):
    made, facts = mixer(Manifest(mix=MixSection(kind=kind))), MIXERS.facts(kind)
    assert made.asynchronous == facts.asynchronous
    assert swaps(made.edge) == facts.swaps
    assert gathers(made.edge) == facts.gathers
    assert broadcasts(made.edge) == facts.broadcasts
