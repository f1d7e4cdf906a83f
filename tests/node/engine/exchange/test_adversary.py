"""The memory that an adversary keeps of its peers."""

import torch
from msgspec import structs

from starling.gossip.api import Effect
from starling.gossip.compress.support import Full
from starling.node.engine.exchange.adversary import MAX_RECEIVED, Adversary
from tests.harness.engines import manifest, open_request
from tests.harness.replicas import DIM, Node

AGREED = manifest(mix="dsgd")
NAMES = [f"peer-{number:02}" for number in range(3 * MAX_RECEIVED)]


def made(attack, **params):
    node = Node(AGREED, "zz")
    return Adversary(structs.replace(open_request(AGREED, node="zz"), attack=attack, attack_params=params), node.replica)


def test_an_adversary_remembers_the_newest_vectors_of_a_bounded_number_of_peers():
    adversary, own = made("sign_flip"), torch.zeros(DIM)
    for number, name in enumerate(NAMES):
        adversary.record(name, torch.full((DIM,), float(number)))
    newest = list(range(2 * MAX_RECEIVED, 3 * MAX_RECEIVED))
    assert torch.allclose(adversary.forge(own, 0), torch.tensor(-sum(newest) / (MAX_RECEIVED + 1)))


def test_an_adversary_ignores_its_accomplices_vectors():
    adversary, own = made("sign_flip", crew="b,zz"), torch.ones(DIM)
    adversary.record("b", torch.full((DIM,), 9.0))
    assert torch.equal(adversary.forge(own, 0), -own)


def test_sent_reports_are_remembered_for_a_bounded_number_of_peers():
    """An exchange whose forged report was forgotten is counted unchanged."""
    adversary = made("sign_flip")
    for name in NAMES:
        adversary.forge(torch.ones(DIM), 0, name)
    effects = [adversary.correct(Effect(name, Full(), torch.zeros(DIM), 0.5, 0.0)) for name in NAMES]
    corrected = [effect.peer for effect in effects if effect.value.any()]
    assert corrected == NAMES[-MAX_RECEIVED:]
