"""The files that an operator mounts: a dashboard of existing metrics, and a scrape of every node of the compose file."""

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from starling.node.status.metrics import exposition
from tests.harness.programs import needs
from tests.harness.scrape import exported, full

OBSERVE = Path(__file__).parents[2] / "docker" / "observe"
DASHBOARD = json.loads((OBSERVE / "starling-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
UNITS = {"short", "percentunit", "ops", "Bps", "bytes", "s"}


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS, ids=[title for title, _ in EXPRESSIONS])
def test_panels_use_only_metrics_that_nodes_export(title, expression):
    known = exported()
    asked = set(re.findall(r"\bstarling_\w+", expression))
    assert asked
    assert asked <= known.keys()
    labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression))
    for by in re.findall(r"\bby \(([^)]*)\)", expression):
        labels |= {label.strip() for label in by.split(",")}
    of_nodes = set().union(*(known[name] for name in asked))
    assert labels - {"instance", "service", "job"} <= of_nodes  # labels that the scrape adds


def test_exactly_the_counters_are_shown_as_rates():
    """Except restarts, which are so rare that their number says more."""
    for title, expression in EXPRESSIONS:
        for name in re.findall(r"(\w*\(?)\bstarling_(\w+)", expression):
            assert (name[0] == "rate(") == (name[1].endswith("_total") and name[1] != "engine_restarts_total"), title


def test_every_panel_has_a_title_and_a_unit():
    for panel in PANELS:
        assert panel["title"], panel["id"]
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["type"] in {"timeseries", "stat"}
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_the_dashboard_has_the_keys_that_grafana_needs():
    assert DASHBOARD["schemaVersion"] >= 36
    assert {"title", "uid", "time", "refresh", "templating", "annotations", "tags"} <= DASHBOARD.keys()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    source, instance = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert re.search(r"label_values\((\w+),", instance["query"]["query"])[1] in exported()
    for panel in PANELS:
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]


def unknown_keys(given, read, where=""):
    """Yield paths of a document's keys that its parsed form lacks."""
    if isinstance(given, dict):
        for key, value in given.items():
            yield from unknown_keys(value, read[key], f"{where}.{key}") if key in read else (f"{where}.{key}",)
    elif isinstance(given, list):
        assert len(given) == len(read), where
        for number, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from unknown_keys(one, other, f"{where}[{number}]")
    else:
        assert given == read, where


def test_grafana_s_own_types_know_every_key():
    """`pip install 'grafana-foundation-sdk==1769699379!11.6.0'`: made from the schemas of the Grafana that the compose file names."""
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    read = json.loads(JSONEncoder().encode(dashboard.Dashboard.from_json(DASHBOARD)))
    of_the_editor = ".templating.list[1].definition"  # the query again, which Grafana writes and its types leave out
    assert [*unknown_keys(DASHBOARD, read)] == [of_the_editor]


def test_panels_neither_overlap_nor_leave_the_page():
    places = [(panel["title"], panel["gridPos"]) for panel in DASHBOARD["panels"]]
    for title, place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24, title
    for (one, a), (other, b) in combinations(places, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart, (one, other)


def test_every_kind_of_node_of_the_compose_file_is_scraped():
    config = yaml.safe_load((OBSERVE / "prometheus.yml").read_text())
    services = yaml.safe_load((OBSERVE.parent / "compose.yaml").read_text())["services"]
    (job,) = config["scrape_configs"]
    (names,) = job["dns_sd_configs"]
    serving = {name for name, service in services.items() if ":9464" in str(service.get("command"))}
    assert serving == {name for name in names["names"] if name in services} >= {"creator", "volunteer"}
    assert (names["type"], names["port"]) == ("A", 9464)
    assert job["sample_limit"] >= 2 * 250


@pytest.mark.real
@needs("promtool")
def test_promtool_accepts_the_configuration(tmp_path):
    """The scrape configuration, and every expression, checked as a recording rule."""
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m").replace("$instance", ".*")}
        for number, (_, expression) in enumerate(EXPRESSIONS)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    for arguments in (("config", str(OBSERVE / "prometheus.yml")), ("rules", str(path))):
        done = subprocess.run(["promtool", "check", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    body, _ = exposition(full())
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
