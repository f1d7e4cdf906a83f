"""Sampled rounds are refused where they would fail, with the bound, the source and the next command."""

from math import comb

import pytest

from starling.gossip.errors import ConfigError
from starling.node.config import manifest, presets
from starling.node.config.descriptions import method
from starling.node.config.schema import Manifest
from starling.node.extras.sampled.keys import bad_majority
from starling.node.simulate.api import simulate
from tests.harness.texts import words

FITS = words("pace.kind=sampled pace.sample=4 pace.quorum=8 mix.kind=gather robust.rule=mean overlay.kind=complete compress.select=full")


def agreed(*more):
    return presets.load(Manifest, None, (*FITS, *more))


def test_valid_sampling_settings_are_accepted_and_described():
    manifest.check(agreed())
    assert "4 members train a round, 20 local steps, 3 average" in method(agreed())
    assert "the next sample averages" in method(agreed("pace.aggregators=0"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (("mix.kind=pet",), "mix.kind: .* stale: must be gather, got pet"),
        (("overlay.kind=pull",), "overlay.kind: .* must be complete"),
        (("robust.rule=cs_nnm",), "robust.rule: cs_nnm uses vectors of earlier rounds"),
        (("pace.quorum=3",), "pace.sample: must be <= pace.quorum = 3"),
        (("pace.aggregators=9",), "pace.aggregators: must be <= pace.quorum = 8"),
        (("pace.overlap=true",), "pace.overlap"),
        (("pace.stop_after=3",), "pace.stop_after"),
        (("robust.rule=median", "byzantine_fraction=0.2"), "pace.aggregators: .* 10 % of rounds .*2302.13837"),
        (("robust.rule=median", "byzantine_fraction=0.2", "pace.aggregators=0"), "pace.sample: .* of rounds"),
    ],
)
def test_settings_that_would_fail_or_be_ignored_are_refused_with_a_reason(changed, words):
    with pytest.raises(ConfigError, match=words) as refused:
        manifest.check(agreed(*changed))
    assert "try `--set" in str(refused.value)


@pytest.mark.parametrize("preset", ["open", "vouched"])
def test_aggregators_among_strangers_are_refused_with_the_probability_of_bad_ones(preset):
    with pytest.raises(ConfigError, match=rf"preset={preset}.*10 % of rounds.*2302\.13837"):
        manifest.check(presets.load(Manifest, None, (f"preset={preset}", "pace.kind=sampled")))


@pytest.mark.parametrize(("value", "key"), [("sample=1", "sample"), ("success=0.5", "success"), ("aggregators=-1", "aggregators")])
def test_errors_about_values_out_of_bounds_name_the_key(value, key):
    with pytest.raises(ConfigError, match=rf"pace\.{key}"):
        agreed(f"pace.{value}")


def test_keys_of_sampled_rounds_are_refused_in_other_paces():
    with pytest.raises(ConfigError, match=r"pace\.sample: steps has no such key; only sampled takes it"):
        presets.load(Manifest, None, ("pace.kind=steps", "pace.sample=4"))


def test_matrix_simulations_refuse_sampled_rounds():
    with pytest.raises(ConfigError, match=r"pace\.kind: .*simulate.engine=virtual"):
        simulate(set=dict(each.split("=") for each in FITS if "pace.s" not in each and "quorum" not in each) | {"pace.sample": 2})


def test_the_probability_of_a_bad_majority_is_that_of_the_literature():
    """20 % Byzantine: 10, 5 and 3 % of rounds with 3, 5 and 7 aggregators."""
    assert [round(100 * bad_majority(a, 0.2)) for a in (3, 5, 7)] == [10, 6, 3]
    assert bad_majority(0, 0.2) == 0.0


@pytest.mark.parametrize(
    ("members", "drawn", "figure"),
    [
        (100, 3, 0.10),
        (100, 5, 0.05),
        (100, 7, 0.03),
        (100, 10, 2.5e-2),
        (100, 20, 6.5e-4),
        (100, 40, 2.6e-10),
        (1000, 20, 2.3e-3),
        (1000, 40, 1.4e-5),
    ],
)
def test_the_refusal_bound_holds_for_any_number_of_members(members, drawn, figure):
    """The reference draws from a finite number of members, a fifth Byzantine; no number gives a higher probability than the bound here."""
    bad = members // 5
    exact = sum(comb(bad, k) * comb(members - bad, drawn - k) for k in range((drawn + 1) // 2, drawn + 1))
    exact /= comb(members, drawn)
    assert exact == pytest.approx(figure, rel=0.1)
    assert exact <= bad_majority(drawn, 0.2)
    assert bad_majority(drawn, 0.2) == pytest.approx(
        sum(comb(10**5, k) * comb(4 * 10**5, drawn - k) for k in range((drawn + 1) // 2, drawn + 1)) / comb(5 * 10**5, drawn), rel=0.01
    ), "and it is what many members come to"
