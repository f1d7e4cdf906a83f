"""Exact tails of the number of Byzantine peers in a random sample, and draws with caps per prefix."""

import math
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.robust.sampling import b_hat, draw, labels, least_s, overflow, prefix_of
from tests.strategies import examples

SIZES = (1, 3, 5, 7, 9, 11, 15, 21, 31)
MAJORITY = {
    # n, f: P[the Byzantine are a majority of s], two digits; None where there are fewer than s others
    (16, 1): ("6.7e-2", "0", "0", "0", "0", "0", "0", None, None),
    (16, 3): ("2.0e-1", "8.1e-2", "2.2e-2", "0", "0", "0", "0", None, None),
    (16, 5): ("3.3e-1", "2.4e-1", "1.7e-1", "1.0e-1", "4.2e-2", "0", "0", None, None),
    (64, 6): ("9.5e-2", "2.2e-2", "4.7e-3", "8.1e-4", "1.0e-4", "6.8e-6", "0", "0", "0"),
    (64, 13): ("2.1e-1", "1.1e-1", "5.5e-2", "2.8e-2", "1.4e-2", "6.6e-3", "1.2e-3", "3.0e-5", "0"),
    (256, 13): ("5.1e-2", "7.0e-3", "9.9e-4", "1.3e-4", "1.7e-5", "1.9e-6", "1.8e-8", "4e-12", "0"),
    (256, 77): ("3.0e-1", "2.2e-1", "1.6e-1", "1.3e-1", "9.7e-2", "7.6e-2", "4.7e-2", "2.3e-2", "6.5e-3"),
    (1000, 100): ("1.0e-1", "2.8e-2", "8.4e-3", "2.6e-3", "8.3e-4", "2.7e-4", "2.7e-5", "9.0e-7", "2.7e-9"),
    (10000, 500): ("5.0e-2", "7.2e-3", "1.2e-3", "1.9e-4", "3.3e-5", "5.7e-6", "1.7e-7", "1e-9", "2e-13"),
    (10000, 3000): ("3.0e-1", "2.2e-1", "1.6e-1", "1.3e-1", "9.9e-2", "7.8e-2", "5.0e-2", "2.6e-2", "9.5e-3"),
}


def as_printed(value, like):
    if value == 0.0:
        return "0"
    digits = len(like.partition("e")[0].replace(".", "")) - 1
    mantissa, exponent = f"{value:.{max(digits, 0)}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


@pytest.mark.parametrize(("n", "f"), MAJORITY)
def test_the_probability_of_a_byzantine_majority_agrees_with_the_table(n, f):
    for s, printed in zip(SIZES, MAJORITY[n, f], strict=True):
        if printed is None:
            with pytest.raises(ValueError, match="s must be in"):
                overflow(n, f, s, (s - 1) // 2)
        else:
            assert as_printed(overflow(n, f, s, (s - 1) // 2), printed) == printed


@pytest.mark.parametrize(("n", "f", "s", "b"), [(7, 3, 4, 1), (8, 2, 3, 0), (6, 5, 2, 1), (9, 4, 8, 3)])
def test_the_probability_equals_enumeration_of_all_samples(n, f, s, b):
    samples = list(combinations(range(n - 1), s))
    worse = sum(sum(member < f for member in sample) > b for sample in samples)
    assert overflow(n, f, s, b) == pytest.approx(worse / len(samples), rel=1e-12)


def test_the_open_preset_s_bound_is_exceeded_in_four_rounds_of_a_hundred():
    """F = 3 of 16, k = 6, b = 2: all three are drawn in 4.4 % of the draws."""
    assert overflow(16, 3, 6, 2) == pytest.approx(0.044, abs=5e-4)


SHARES = {64: (3, 6, 13, 19), 256: (13, 26, 51, 77), 1000: (50, 100, 200, 300), 10000: (500, 1000, 2000, 3000)}


@pytest.mark.parametrize(
    ("n", "f", "most"), [(64, 6, (5, 6, 6, 6)), (64, 13, (6, 8, 10, 13)), (1000, 100, (6, 8, 10, 15)), (1000, 200, (6, 9, 13, 20))]
)
def test_b_hat_of_1000_rounds_agrees_with_the_table(n, f, most):
    assert tuple(b_hat(n, f, s, n - f, 1000, 0.01) for s in (6, 9, 15, 30)) == most


def test_the_exact_count_needs_fewer_than_the_bounds_of_theory():
    """RPEL's closed form requires more peers than there are members, a Chernoff bound of the majority 26."""
    n, f, rounds, epsilon = 100, 10, 200, 0.2
    spread = math.log(4 * (n - f) * rounds / epsilon)
    assert math.ceil(3 * n / f * spread + 2) == 386
    divergence = 0.5 * math.log(0.5 / 0.1) + 0.5 * math.log(0.5 / 0.9)
    assert math.ceil(spread / divergence) == 26
    assert least_s(n, f, n - f, rounds, epsilon) < 26


@given(n=st.integers(2, 60), data=st.data())
@examples(60)
def test_b_hat_is_the_smallest_sufficient_bound(n, data):
    f, s = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n - 1))
    nodes, rounds, epsilon = data.draw(st.sampled_from([(1, 1, 0.5), (7, 10, 0.1), (50, 1000, 0.01)]))
    b = b_hat(n, f, s, nodes, rounds, epsilon)

    def kept(b):
        return (1.0 - overflow(n, f, s, b)) ** (nodes * rounds)

    assert kept(b) >= (1 - epsilon) * (1 - 1e-9)
    assert b == 0 or kept(b - 1) < (1 - epsilon) * (1 + 1e-9)


@given(n=st.integers(2, 80), data=st.data())
@examples(60)
def test_more_bad_members_and_a_smaller_b_are_never_safer(n, data):
    f, s = data.draw(st.integers(0, n - 2)), data.draw(st.integers(0, n - 1))
    b = data.draw(st.integers(0, n))
    tail = overflow(n, f, s, b)
    assert 0.0 <= tail <= 1.0
    assert tail <= overflow(n, f + 1, s, b) + 1e-15
    assert tail >= overflow(n, f, s, b + 1)


@pytest.mark.parametrize(
    ("of", "arguments"),
    [
        *((overflow, it) for it in ((4, 4, 1, 0), (4, -1, 1, 0), (4, 1, 4, 0), (4, 1, -1, 0), (4, 1, 1, -1))),
        *((b_hat, (9, 1, 2, *it)) for it in ((0, 1, 0.1), (1, 0, 0.1), (1, 1, 0.0), (1, 1, 1.0))),
        (least_s, (9, 6, 3, 10, 0.01)),
        (draw, ((), -1, {}, 0, 1)),
        (draw, ((), 1, {}, -1, 1)),
    ],
)
def test_arguments_out_of_bounds_are_refused(of, arguments):
    with pytest.raises(ValueError, match="must be"):
        of(*arguments)


DOCS = Path(__file__).parents[2] / "docs" / "robustness.md"


def rows(text, header):
    lines = text.partition(header)[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_documented_probabilities_agree_with_the_code():
    text = DOCS.read_text()
    table = rows(text, "| n, f |")
    assert len(table) == 6
    for size, *figures in table:
        n, f = map(int, size.split(","))
        for k, printed in zip((4, 6, 9, 12, 15), figures, strict=True):
            assert 100 * overflow(n, f, k, k // 3) == pytest.approx(float(printed.removesuffix("%")), rel=0.06, abs=1e-12)
    sizes = {int(n): tuple(map(int, sizes)) for n, *sizes in rows(text, "| n | 5 % Byzantine |")}
    assert sizes == {n: tuple(least_s(n, f, n - f, 1000, 0.01) for f in SHARES[n]) for n in SHARES}


swarms = st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["", "x", "y"])), min_size=0, max_size=24)


@given(members=swarms, k=st.integers(0, 12), cap=st.integers(0, 3), seed=st.integers(0, 2**63 - 1))
def test_a_draw_is_distinct_respects_every_cap_and_stops_only_without_candidates(members, k, cap, seed):
    prefixes = {f"peer{i}": {f"{kind}{label}" for kind, label in zip("po", both, strict=True) if label} for i, both in enumerate(members)}
    peers = tuple(prefixes)
    drawn = draw(peers, k, prefixes, cap, seed)
    held = Counter(label for peer in drawn for label in prefixes[peer])
    assert len(set(drawn)) == len(drawn) <= k
    assert set(drawn) <= set(peers)
    assert not cap or max(held.values(), default=0) <= cap
    if len(drawn) < k:
        left = set(peers) - set(drawn)
        assert all(cap and any(held[label] >= cap for label in prefixes[peer]) for peer in left)
    assert draw(peers, k, prefixes, cap, seed) == drawn


def test_without_caps_every_set_is_as_likely_as_any_other():
    """Chi square over the 20 sets of 3 of 6, 19 degrees of freedom: 43.8 is exceeded once in a thousand seeds, and these are fixed."""
    peers = tuple("abcdef")
    counts = Counter(frozenset(draw(peers, 3, {}, 1, seed)) for seed in range(4000))
    expected = 4000 / 20
    assert len(counts) == 20
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 43.8


def test_many_identities_of_one_prefix_get_one_place():
    """Ten times as many as the honest, all in one /24, get at most `per_prefix` of six places."""
    honest = {f"h{i}": labels([f"/ip4/20.{i}.0.1/tcp/1"]) for i in range(10)}
    army = {f"s{i}": labels([f"/ip4/66.1.1.{i}/tcp/1"]) for i in range(100)}
    for seed in range(200):
        drawn = draw(tuple({**army, **honest}), 6, honest | army, 1, seed)
        assert len(drawn) == 6
        assert sum(peer in army for peer in drawn) <= 1


def test_a_draw_takes_any_source_of_integers_and_each_candidate_once():
    assert draw(("a", "b", "c"), 2, {}, 0, lambda bound: bound - 1) == ("c", "b")
    assert draw(("a", "b", "c"), 2, {}, 0, lambda bound: 0) == ("a", "c")
    assert sorted(draw(("a", "a", "b"), 3, {}, 0, 1)) == ["a", "b"]


@pytest.mark.parametrize(
    ("address", "prefix"),
    [
        ("/ip4/1.2.3.4/tcp/4001", "1.2.3.0/24"),
        ("/ip4/1.2.3.255/udp/1/quic-v1/p2p/Qm", "1.2.3.0/24"),
        ("/ip6/2a00:1450:4001:81b::200e/tcp/1", "2a00:1450:4001::/48"),
        ("/ip6/::ffff:8.8.8.8/tcp/1", "8.8.8.0/24"),
        ("/ip6zone/eth0/ip6/fe80::1/tcp/1", None),
        *((f"/ip4/{host}/tcp/1", None) for host in ("127.0.0.1", "10.1.2.3", "192.168.1.1", "100.64.0.1", "0.0.0.0")),
        *((address, None) for address in ("/ip6/::1/tcp/1", "/ip6/fd00::1/tcp/1", "/ip4/1.2.3/tcp/1", "1.2.3.4", "")),
        ("/dns4/one.example.org/tcp/1", "named"),
        ("/dns4/two.example.org/tcp/1", "named"),
        ("/ip4/1.2.3.4/tcp/1/p2p/R/p2p-circuit/p2p/P", "relayed"),
        ("/ip4/10.2.3.4/tcp/1/p2p/R/p2p-circuit/p2p/P", None),
    ],
)
def test_addresses_have_the_expected_prefixes(address, prefix):
    assert prefix_of(address) == prefix


@given(st.text(max_size=40))
def test_any_text_has_a_prefix_or_none(text):
    prefix = prefix_of(text)
    assert prefix is None or prefix in {"named", "relayed"} or "/" in prefix


def test_a_peer_counts_for_all_its_prefixes_and_its_operator():
    found = labels(["/ip4/1.2.3.4/tcp/1", "/ip4/1.2.3.9/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip6/2a00::1/tcp/1"], "acme")
    assert found == {"1.2.3.0/24", "2a00::/48", "operator acme"}
    assert labels(["/ip4/10.0.0.1/tcp/1"]) == frozenset()
