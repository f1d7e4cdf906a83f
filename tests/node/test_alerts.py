"""Alerts for Prometheus use metrics and labels that nodes export, in valid PromQL, with a section of the runbook each."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from starling.node.status.metrics import PEER_STATES, STATES
from starling.node.status.snapshot import Exchanges
from tests.harness.programs import needs
from tests.harness.scrape import exported

ROOT = Path(__file__).parents[2]
OBSERVE = ROOT / "docker" / "observe"
(GROUP,) = yaml.safe_load((OBSERVE / "alerts.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for rule in GROUP["rules"]}
OF_SCRAPES = {"instance", "job", "service"}
VALUES = {"starling_state": set(STATES), "starling_peers": set(PEER_STATES), "starling_exchanges_total": set(Exchanges.__struct_fields__)}

# One vector: a selector, a function of a range, or a sum of such; compared with a number or another; several joined by `and on (…)`.
SELECTOR = r"[a-z_:]+(?:\{[a-z_]+=~?\"[a-z|]+\"(?:, ?[a-z_]+=~?\"[a-z|]+\")*\})?"
RANGED = rf"(?:rate|increase|max_over_time)\({SELECTOR}\[\d+[smhd]\](?: offset \d+[smhd])?\)"
VECTOR = rf"(?:\d+ \* )?(?:sum by \([a-z, ]+\) \({RANGED}\)|{RANGED}|{SELECTOR}(?: offset \d+[smhd])?)"
TERM = rf"{VECTOR} (?:==|>=|<=|>|<) (?:\d+|{VECTOR})"
PROMQL = re.compile(rf"{TERM}(?: and on \([a-z, ]+\) {TERM})*")


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_use_only_metrics_that_nodes_export(name):
    """These files use a small subset of PromQL, which is checked completely."""
    expression, known = ALERTS[name]["expr"], exported()
    assert PROMQL.fullmatch(expression), expression
    asked = set(re.findall(r"\bstarling_\w+", expression))
    assert asked <= known.keys()
    assert asked or re.search(r"\bup\{", expression)
    for metric, inside in re.findall(r"\b(starling_\w+)\{([^}]*)\}", expression):
        for label, values in re.findall(r"(\w+)=~?\"([^\"]*)\"", inside):
            assert label in known[metric]
            assert set(values.split("|")) <= VALUES[metric]
    for by in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in by.split(",")} <= OF_SCRAPES
    for function, metric in re.findall(r"(\w*)\(?\b(starling_\w+)", expression):
        assert metric.endswith("_total") == (function in {"rate", "increase"})


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_have_a_summary_and_a_runbook_link(name):
    """Links are relative to the repository, so mirrors work too."""
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"


def test_the_runbook_has_one_section_per_alert():
    assert re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE) == list(ALERTS)


def test_prometheus_is_configured_with_the_alerts():
    """In the container and on disk."""
    (named,) = yaml.safe_load((OBSERVE / "prometheus.yml").read_text())["rule_files"]
    service = yaml.safe_load((OBSERVE.parent / "compose.yaml").read_text())["services"]["prometheus"]
    assert f"./observe/{named}:/etc/prometheus/{named}:ro" in service["volumes"]


def test_names_of_metrics_follow_the_conventions():
    """Prometheus's, which OpenTelemetry's exporters keep: a prefix, snake case, base units last, then `_total`."""
    for name in exported():
        assert re.fullmatch(r"starling(_[a-z]+)+", name), name
        assert not re.search(r"_(ms|millis\w*|kb|mb|percent|pct|minutes|hours|count)(_|$)", name), name
        if re.search(r"_(seconds|bytes|ratio|cores|samples)(_|$)", name):
            assert re.search(r"_(seconds|bytes|ratio|cores|samples|(seconds|bytes|sent|received)_total|per_second)$", name), name


@pytest.mark.real
@needs("promtool")
def test_promtool_accepts_the_alerts():
    for arguments in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml")):
        done = subprocess.run(["promtool", *arguments], cwd=OBSERVE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
