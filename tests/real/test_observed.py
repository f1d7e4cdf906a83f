"""A real node is scraped, recorded, logged and converted by the unchanged commands of docs/observing.md."""

import importlib.util
import json
import re
import socket
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from starling.node.daemon.observe.recorder import Totals, round_fields
from starling.node.status.record import load
from tests.harness import pages
from tests.harness.processes import ENVIRONMENT, ROOT, bash, status_of, terminals
from tests.harness.programs import needs

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("warm_engines")]

BLOCKS = {block.reader: block for block in pages.blocks(ROOT / "docs/observing.md")}
ENDLESS = "--set pace.quorum=1 --set pace.rounds=0 --set optimizer.schedule=constant --listen /ip4/127.0.0.1/tcp/0 --dir node"


def figures(text):
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


@needs("curl")
def test_a_node_is_scraped_recorded_and_logged_while_it_trains(tmp_path):
    """A second node on the same port reports it once and continues training."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (serve,) = (line.replace("127.0.0.1:9464", address) for line in BLOCKS["serve"].lines)
    metrics, health = (line.replace("127.0.0.1:9464", address) for line in BLOCKS["scrape"].lines)
    node, other = tmp_path / "node", tmp_path / "other"
    with terminals() as terminal:
        first = terminal(f"{serve} {ENDLESS}", tmp_path, "first")
        first.until(lambda: (now := status_of(node)) and now.round > 2)
        before = figures(bash(metrics, tmp_path))
        first.until(lambda: figures(bash(metrics, tmp_path))["starling_round"] > before["starling_round"] + 2)
        after = figures(bash(metrics, tmp_path))
        for name in ("starling_round", "starling_local_steps_total", "starling_uptime_seconds"):
            assert after[name] > before[name] > 0
        assert after["starling_loss"] > 0
        assert bash(health, tmp_path).startswith("training: no other member is here, this node trains alone; invite others")

        second = terminal(f"{serve} {ENDLESS.replace('--dir node', '--dir other')}", tmp_path, "second")
        second.until(lambda: (now := status_of(other)) and now.round > 1)
        said = [event for event in status_of(other).events if event.name == "no_metrics"]
        assert len(said) == 1
        assert repr(address) in said[0].text
        for each in (second, first):
            assert each.ctrl_c() == 0
            assert "Traceback" not in each.err

    run = load(node / "record.jsonl")
    assert run[-1].state == "leaving"
    assert run[-1].round >= after["starling_round"]
    assert [point.round for point in run[-1].loss_curve] == sorted({point.round for point in run[-1].loss_curve})
    lines = [json.loads(line) for line in (node / "log.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["event"] == "round"]
    common = {"time", "level", "event", "peer_id", "run_id"}
    assert all(set(line) - common == set(round_fields(Totals(0.0), Totals(0.0))) for line in rounds)
    assert sum(line["rounds"] for line in rounds) == rounds[-1]["round"] == run[-1].round
    assert sum(line["steps"] for line in rounds) == run[-1].local_steps
    assert len(rounds) <= run[-1].uptime_s + 1


def test_a_recorded_demo_is_read_by_all_readers_of_records(tmp_path):
    demo, convert = BLOCKS["record"].lines
    table = bash(demo, tmp_path)
    assert "accuracy: mean" in table
    runs = [load(tmp_path / "my-demo" / f"node-{n}" / "record.jsonl") for n in range(2)]
    assert all(run[-1].round == 60 for run in runs)
    assert {event.name for event in runs[0][-1].events} >= {"listening", "peer_joined", "finished"}
    if importlib.util.find_spec("tensorboard") is not None:
        (tmp_path / "tools").symlink_to(ROOT / "tools")  # the page's command assumes a checkout
        written = bash(convert, tmp_path)
        assert re.findall(r"(node-\d)/record.jsonl: [1-9]\d* points", written) == ["node-0", "node-1"]
    if importlib.util.find_spec("pandas") is not None:
        subprocess.run([sys.executable, "-c", BLOCKS["pandas"].text], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=60)
