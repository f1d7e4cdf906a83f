"""A swarm as matrices gives the models of a loop over its nodes, within a relative 1e-9: for every mixer, selector, codec and clip."""

from itertools import product

import numpy as np
import pytest
import torch

from starling.gossip.api import Phase
from starling.gossip.compress.select.coordinates import Everything, Mask, RandomK, TopK
from starling.gossip.compress.select.dct import DctTopK
from starling.gossip.compress.select.low_rank import LowRank, Matrix
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.overlay.base_k import BaseK
from starling.gossip.overlay.one_peer import OnePeerExponential
from starling.gossip.overlay.static import Ring
from starling.gossip.overlay.sticky import Sticky
from starling.node.simulate.matrix.faults import Change
from starling.node.simulate.matrix.schedule import Schedule
from starling.node.simulate.matrix.swarm import Swarm
from tests.harness.stub_rules import Wary
from tests.harness.two_engines import DIM, LR, NODES, PEERS, STEPS, Both, exchange_codec

PARAMS = {
    "pet": {"kappa": 0.3, "flow_limit": 0.5},
    "choco": {"gamma": 0.3},
    "beer": {"gamma": 0.3},
    "a2cid2": {"chi1": 9.0, "chi2": 2.0},
    "outer": {"pull": 0.3},
    "gather": {"rule": Wary()},
}
OVERLAYS = {"ring": Ring(), "sticky": Sticky(3), "base_k": BaseK(2), "one_peer": OnePeerExponential()}
SELECTORS = {"full": Everything(), "mask": Mask(0.3), "top_k": TopK(0.2)}
CODECS = {"exact": ("identity", "identity"), "four_bits": ("fp16", "int4"), "eight_bits": ("int8", "int8")}
LOOPED = sorted(set(MIXERS) - {"sparse_outer", "seeds"})  # the reference loop has edges only; test_engines.py compares broadcast messages
CASES = list(product(LOOPED, SELECTORS, CODECS, OVERLAYS))


def mixer(name):
    return MIXERS[name](**PARAMS.get(name, {}))


def walk(name, select, codecs, overlay, rounds=4):
    """An exact codec returns a clipped vector unchanged, whose length may differ from the clip in its last bit, so it goes unclipped."""
    both = Both(
        mixer(name),
        exchange_codec(*CODECS[codecs], clip_norm=0.0 if codecs == "exact" else 1.0),
        SELECTORS[select],
        compares=select == "top_k",
    )
    for number in range(rounds):
        before = both.matrix.x.clone()
        both.round(number, OVERLAYS[overlay])
        both.check()
        assert not torch.equal(both.matrix.x, before)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "select", "codecs", "overlay"), CASES[:36:4] + CASES[36::11])
def test_the_matrix_follows_the_loop_s_trajectory(name, select, codecs, overlay):
    """So a simulation of thousands of nodes is an experiment with the product itself.

    A part of all cases; `test_every_case_follows_the_loop_s_trajectory` has the rest.
    """
    walk(name, select, codecs, overlay)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pet", *(pytest.param(name, marks=pytest.mark.acceptance) for name in ("choco", "push_sum", "gather"))])
def test_two_hundred_rounds_stay_within_the_tolerance(name):
    two_hundred(name, "exact")


@pytest.mark.acceptance
@pytest.mark.parametrize("codecs", ["exact", "eight_bits"])
@pytest.mark.parametrize("name", LOOPED)
def test_after_two_hundred_rounds_both_are_within_a_relative_1e_9(name, codecs):
    """They differ only in the order of sums: roundings of 1e-16 neither grow nor change a selection or a quantised value."""
    two_hundred(name, codecs)


def two_hundred(name, codecs):
    both = Both(mixer(name), exchange_codec(*CODECS[codecs], clip_norm=0.0), Mask(0.3))
    for number in range(200):
        both.round(number, Ring())
    both.check()


@pytest.mark.acceptance
@pytest.mark.parametrize(("name", "select", "codecs", "overlay"), CASES)
def test_every_case_follows_the_loop_s_trajectory(name, select, codecs, overlay):
    walk(name, select, codecs, overlay)


@pytest.mark.slow
@pytest.mark.parametrize(
    "selector",
    [RandomK(0.2), Mask(0.3, block=7), DctTopK(0.2, 64), LowRank(2, (Matrix(10, 10, 12),))],
    ids=lambda selector: type(selector).__name__,
)
@pytest.mark.parametrize("name", ["pet", "gradient_tracking", "choco"])
def test_supports_of_any_kind_give_the_same_bits(name, selector):
    """Scattered coordinates, blocks, cosines and low-rank factors: the support alone says what is moved."""
    low_rank = selector if isinstance(selector, LowRank) else None
    both = Both(
        mixer(name),
        exchange_codec("fp16", "int4", low_rank=low_rank, chunk=getattr(selector, "chunk", 0)),
        selector,
        compares=isinstance(selector, DctTopK | LowRank),
    )
    for number in range(3):
        both.round(number, Ring())
        both.check()


@pytest.mark.parametrize("clip_norm", [0.0, 0.05, 100.0])
def test_clipping_off_always_and_never_gives_the_same_bits(clip_norm):
    """Where the quantiser lengthens a clipped vector, values are shortened and rounded again from the same random stream."""
    both = Both(mixer("pet"), exchange_codec("fp16", "int4", clip_norm), Mask(0.5))
    for number in range(3):
        both.round(number, Ring())
        both.check()


@pytest.mark.parametrize("name", ["pet", "k_gt", "push_sum"])
def test_double_precision_gives_the_same_bits(name):
    both = Both(mixer(name), exchange_codec("identity", "identity", dtype=torch.float64), Everything(), torch.float64)
    for number in range(3):
        both.round(number, OnePeerExponential())
        both.check()


@pytest.mark.parametrize("name", ["pet", "gradient_tracking", "outer", "push_sum"])
def test_results_do_not_depend_on_how_many_rows_are_computed_together(name, monkeypatch):
    """The number of rows is chosen for speed, by the processor's cache."""
    monkeypatch.setattr("starling.node.simulate.matrix.swarm.NUMBERS_AT_ONCE", 2 * DIM)
    few = Both(mixer(name), exchange_codec("fp16", "int8"), Everything())
    for number in range(3):
        few.round(number, Ring())
        few.check()


def test_bytes_are_those_of_the_payloads():
    """Bytes are counted without encoding anything."""
    for selector, codecs in product((Everything(), Mask(0.3), TopK(0.2)), CODECS.values()):
        agreed = exchange_codec(*codecs)
        both = Both(mixer("pet"), agreed, selector)
        x = both.matrix.x.clone() - 0.1 * both.a * (both.matrix.x - both.b)
        both.matrix.x.copy_(x)
        meetings = Schedule(Ring(), PEERS, b"salt").at(0, np.ones(NODES, bool))
        done = both.matrix.round(Phase(0, 1.0, LR), None, 0, meetings)
        for place, (row, peer) in enumerate(done.ends.T.tolist()):
            support = selector.select(x[row], None, both.matrix.edges.open[row, peer].seed, 1)
            asked = agreed.encode_request(x[row], support, torch.Generator())
            mine, (_, theirs) = support.take(x[peer]), agreed.decode_request(asked, DIM, x.dtype)
            answered, _ = agreed.encode_difference(mine - theirs, DIM, torch.Generator())
            assert tuple(done.sizes[:, place]) == (len(asked), len(answered))


def test_rows_that_were_never_alive_do_not_affect_the_others():
    """Rows reserved for later joiners take no part, wherever they are; between other rows they turn views into copies."""
    mixing, agreed = mixer("pet"), exchange_codec("fp16", "int4")
    both = Both(mixing, agreed, Mask(0.3))
    living = torch.tensor([0, 1, 3, 4, 5, 7, 8])
    peers = (*PEERS[:2], "aa", *PEERS[2:5], "bb", *PEERS[5:])
    alive = torch.zeros(9, dtype=torch.bool).index_fill(0, living, value=True)
    start = torch.zeros(9, DIM, dtype=torch.float64).index_copy(0, living, both.matrix.x)
    more = Swarm(peers, start, mixing, agreed, Mask(0.3), 5, alive)

    def step(rows, round, number, x, correct):
        own = torch.searchsorted(living, rows)
        return x - LR * correct(both.a[own] * (x - both.b[own]))

    for number in range(4):
        both.round(number, Sticky(3))
        meetings = Schedule(Sticky(3), peers, b"salt").at(number, alive.numpy())
        more.round(Phase(number, float(STEPS), LR), step, STEPS, meetings)
    assert torch.equal(more.x[living], both.matrix.x)
    assert not more.x[~alive].any()


def test_a_swarm_of_mismatched_parts_is_refused():
    mixing, agreed, alive = mixer("pet"), exchange_codec("fp16", "int4"), torch.ones(3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"x must be \(3, d\)"):
        Swarm(("a", "b", "c"), torch.zeros(2, 4), mixing, agreed, Everything(), 0, alive)
    with pytest.raises(ValueError, match="peers must differ"):
        Swarm(("a", "b", "a"), torch.zeros(3, 4), mixing, agreed, Everything(), 0, alive)
    swarm = Swarm(("a", "b", "c"), torch.zeros(3, 4), mixing, agreed, Everything(), 0, alive)
    swarm.change(Change(crashed=(1,)))
    with pytest.raises(ValueError, match="row 1 cannot go"):
        swarm.change(Change(crashed=(1,)))
    with pytest.raises(ValueError, match="row 0 cannot join"):
        swarm.change(Change(joined=((0, 2),)))
    with pytest.raises(ValueError, match="needs rounds"):
        Swarm(("a", "b", "c"), torch.zeros(3, 4), mixer("k_gt"), agreed, Everything(), 0, alive).slot(
            Phase(0, 1.0, 0.1), None, 0, Schedule(Ring(), ("a", "b", "c"), b"").at(0, np.ones(3, bool))
        )


def test_a_diverging_swarm_is_reported():
    both = Both(mixer("dsgd"), exchange_codec("fp16", "int4"), Everything())
    both.matrix.x[2, 3] = torch.inf
    with pytest.raises(ValueError, match="not_finite"):
        both.matrix.round(Phase(0, 1.0, LR), None, 0, Schedule(Ring(), PEERS, b"").at(0, np.ones(NODES, bool)))
