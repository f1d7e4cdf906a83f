"""Personal parameters: the shared part is mixed as if it were the whole model, and the rest follows its own gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.api import Phase
from starling.gossip.errors import ConfigError
from starling.gossip.mix.dsgd import Dsgd
from starling.gossip.mix.gradient_tracking import GradientTracking
from starling.gossip.mix.personal import SHARES, Personal, at_home, chosen, shared_layout, shared_spans
from starling.gossip.mix.pet import Pet
from starling.gossip.vector import Layout

LAYOUT = Layout(("body.0.weight", "head.weight", "body.1.weight", "head.bias"), ((2, 2), (3,), (2,), (1,)), torch.float64)
HOME = at_home(LAYOUT, ["head.*"])
SPANS = shared_spans(LAYOUT, HOME)
NEW = Phase(0, 2.0, 0.1, highest_lr=0.1)


@pytest.mark.parametrize("inner", [Dsgd(), Dsgd("awc"), GradientTracking(), Pet()], ids=["atc", "awc", "tracking", "pet"])
def test_the_shared_part_evolves_as_a_separate_model_and_the_rest_is_untouched(inner):
    """For rows too: the first dimension indexes nodes."""
    x, gradient, moved = torch.randn(3, 3, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = Personal(inner, SPANS)
    part = whole.part
    assert torch.equal(whole.put(x, part(moved))[:, 4:7], x[:, 4:7])
    state, alone = whole.start(x), inner.start(part(x))
    direction, state = whole.correct(state, gradient)
    expected, alone = inner.correct(alone, part(gradient))
    assert torch.equal(part(direction), expected)
    assert torch.equal(direction[:, 4:7], gradient[:, 4:7])
    stepped = x - 0.1 * direction
    after, state = whole.publish(state, stepped, NEW)
    own, alone = inner.publish(alone, part(stepped), NEW)
    shared = whole.shared(state, after)
    assert torch.equal(shared, inner.shared(alone, own))
    mixed, _ = whole.absorb(state, after, shared * 0.5, NEW)
    assert torch.equal(part(mixed), inner.absorb(alone, own, shared * 0.5, NEW)[0])
    assert torch.equal(mixed[:, 4:7], stepped[:, 4:7])
    assert torch.equal(mixed[:, 9:], stepped[:, 9:])


def test_shared_parameters_keep_their_names_and_order():
    assert (slice(0, 4), slice(7, 9)) == SPANS
    assert shared_layout(LAYOUT, HOME).names == ("body.0.weight", "body.1.weight")
    assert shared_layout(LAYOUT, HOME).dim == 6


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["tail.*"], r"mix.personal: 'tail.\*' matches no parameter of this model; its names are body.0.weight, head.weight"),
        (["head.*", "body.*"], r"mix.personal: head.\*, body.\* match all of the model"),
    ],
)
def test_patterns_that_match_nothing_or_everything_are_refused(patterns, message):
    with pytest.raises(ConfigError, match=message):
        at_home(LAYOUT, patterns)


@given(st.lists(st.floats(0, 9) | st.just(float("nan")) | st.just(float("inf")), min_size=3, max_size=3))
def test_the_share_with_the_smallest_loss_is_taken_and_none_without_a_finite_loss(losses):
    taken = float(chosen(torch.tensor(losses, dtype=torch.float64)))
    assert taken in SHARES
    finite = [loss for loss in losses if loss < float("inf")]
    if not finite:
        assert taken == 0.0
    else:
        assert losses[SHARES.index(taken)] == min(finite)
