"""The torch-free facts by which manifests are checked agree with the algorithms."""

import pytest

from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.kinds import ALIKE, SWAPPED, EdgeKind, kind_of
from starling.node.config.schema import Manifest, MixSection
from starling.node.engine.mixing import mixer


@pytest.mark.parametrize("kind", MIXERS)
def test_documented_facts_of_algorithms_hold(kind):
    made, facts = mixer(Manifest(mix=MixSection(kind=kind))), MIXERS.facts(kind)
    assert made.asynchronous == facts.asynchronous
    kind = kind_of(made.edge)
    assert (kind in SWAPPED) == facts.swaps
    assert (kind in ALIKE) == facts.common
    assert (kind is EdgeKind.GATHERS) == facts.gathers
    assert (kind is EdgeKind.BROADCASTS) == facts.broadcasts
