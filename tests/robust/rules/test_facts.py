"""What is told about rules without torch is what the rules do, and settings past the breakdown point are refused."""

import subprocess
import sys

import pytest

from starling.gossip.errors import ConfigError
from starling.robust.breakdown import check
from starling.robust.catalogue import RULES, rule
from tests.harness.robust_rules import PARAMS, example

PER_ROW = {"nothing": 0, "number": 1, "model": 40, "peers": 64 * 40}


@pytest.mark.parametrize("name", RULES)
def test_memory_is_as_long_as_told(name):
    own = example(1, (2,))[0]
    assert rule(name, PARAMS.get(name)).start(own).shape == (2, PER_ROW[RULES.facts(name).memory])


@pytest.mark.parametrize("name", [name for name in RULES if RULES.facts(name).per_bad])
@pytest.mark.parametrize("b", [1, 2, 3])
def test_the_least_number_of_peers_is_where_a_rule_begins_to_tolerate_b(name, b):
    made = rule(name, {**PARAMS.get(name, {}), **({"b": b} if "b" in RULES.parameters(name) else {})})
    assert min(k for k in range(1, 60) if made.tolerates(k) >= b) == RULES.facts(name).least_peers(b)


@pytest.mark.parametrize("name", RULES)
def test_at_the_bound_it_is_accepted_and_below_refused(name):
    known, b = RULES.facts(name), 2
    least = known.least_peers(b)
    check(name, max(least, 8), b, min(known.share, 0.2))
    if "b" in RULES.parameters(name):
        check(name, least, b, 0.0)
        with pytest.raises(
            ValueError, match=f"robust.b: {name} needs k >= {least} for b = 2 .*, got k = {least - 1} peers"
        ):
            check(name, least - 1, b, 0.0)
    if known.share < 0.45:
        with pytest.raises(ValueError, match=f"bad_share: {name} stands at most {known.share:g} "):
            check(name, 12, b, known.share + 0.05)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("mean", 6, 2, 0.01),
            "bad_share: mean stands at most 0 .one Byzantine member moves a mean anywhere., got 0.01",
        ),
        (("cs_nnm", 6, 1, 0.25), "of k = 6 peers 1.5 are bad on average at bad_share = 0.25, more than b = 1"),
        (("foolsgold", 6, 2, 0.0, "nnm"), "robust.before: foolsgold tells peers apart, whom nnm mixes; must be empty"),
        (("foolsgold", 6, 2, 0.1), "bad_share: foolsgold stands at most 0 "),
        (("median", 3, 2, 0.0, "nnm"), "nnm needs k >= 4 for b = 2"),
        (("trimmed_mean", 6, 2, 0.1, "bucketing", 2), "needs k >= 4 for b = 2 .*, got 3 buckets of k = 6 peers"),
    ],
)
def test_what_cannot_hold_is_refused_in_one_line(arguments, said):
    with pytest.raises(ValueError, match=said) as caught:
        check(*arguments)
    assert "\n" not in str(caught.value)


def test_an_unknown_rule_is_refused_with_what_is_close():
    with pytest.raises(ConfigError, match=r"robust.rule: 'medain' is unknown, choose one of .*did you mean median\?"):
        check("medain", 6, 2, 0.1)


def test_the_defaults_of_a_manifest_hold():
    check("cs_nnm", 6, 2, 0.2)


def test_no_bad_ones_need_no_peers():
    check("krum", 1, 0, 0.0)


def test_facts_are_free_of_torch():
    program = (
        "import sys, starling.robust.breakdown as b; b.check('cs_nnm', 6, 2, 0.2); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
