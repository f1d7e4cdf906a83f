"""The torch-free facts of rules agree with the rules; settings past the breakdown point are refused."""

import subprocess
import sys

import pytest

from starling.gossip.errors import ConfigError
from starling.robust.breakdown import check
from starling.robust.catalogue import RULES, rule
from tests.harness.robust_rules import PARAMS, example

PER_ROW = {"nothing": 0, "number": 1, "model": 40, "peers": 64 * 40}


@pytest.mark.parametrize("name", RULES)
def test_the_facts_of_rules_agree_with_the_rules(name):
    known, least = RULES.facts(name), RULES.facts(name).least_peers(2)
    assert rule(name, PARAMS.get(name)).start(example(1, (2,))[0]).shape == (2, PER_ROW[known.memory])
    check(name, max(least, 8), 2, min(known.share, 0.2))
    if "f" in RULES.parameters(name):
        check(name, least, 2, 0.0)
        reason = f"robust.f: {name} needs k >= {least} for f = 2 .*, got k = {least - 1} peers"
        with pytest.raises(ValueError, match=reason):
            check(name, least - 1, 2, 0.0)
    if known.share < 0.45:
        with pytest.raises(ValueError, match=f"byzantine_fraction: {name} tolerates at most {known.share:g} "):
            check(name, 12, 2, known.share + 0.05)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("mean", 6, 2, 0.01), "mean tolerates at most 0 .one Byzantine member moves a mean anywhere., got 0.01"),
        (("cs_nnm", 6, 1, 0.25), "of k = 6 peers 1.5 are Byzantine on average at .* = 0.25, more than f = 1"),
        (("foolsgold", 6, 2, 0.0, "nnm"), "robust.before: foolsgold needs separate peers, which nnm mixes; must be left out"),
        (("foolsgold", 6, 2, 0.1), "byzantine_fraction: foolsgold tolerates at most 0 "),
        (("median", 3, 2, 0.0, "nnm"), "nnm needs k >= 4 for f = 2"),
        (("trimmed_mean", 6, 2, 0.1, "bucketing", 2), "needs k >= 4 for f = 2 .*, got 3 buckets of k = 6 peers"),
        (("medain", 6, 2, 0.1), r"robust.rule: 'medain' is unknown, choose one of .*did you mean median\?"),
    ],
)
def test_settings_past_the_breakdown_point_are_refused_in_one_line(arguments, reason):
    with pytest.raises((ValueError, ConfigError), match=reason) as caught:
        check(*arguments)
    assert "\n" not in str(caught.value)


def test_the_defaults_of_a_manifest_and_f_of_0_are_accepted_without_torch():
    program = "import sys, starling.robust.breakdown as b; b.check('cs_nnm', 6, 2, 0.2); b.check('krum', 1, 0, 0.0)"
    assert subprocess.run([sys.executable, "-c", f"{program}; sys.exit('torch' in sys.modules)"], check=False).returncode == 0
