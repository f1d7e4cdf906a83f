"""docs/comparison.md: its statements about this project hold, and its figures are those of the stored result."""

import json
import re
from pathlib import Path
from statistics import fmean

from benchmarks.peers.__main__ import PEERS
from starling.gossip.mix.catalogue import MIXERS
from starling.robust.catalogue import RULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/comparison.md").read_text()
STORED = json.loads((ROOT / re.search(r"\(\.\./(benchmarks/peers/results/[\w-]+\.json)\)", PAGE)[1]).read_text())


def test_the_page_s_figures_are_the_stored_ones():
    cases = {case["rule"]: case for case in STORED["rules"]}
    rows = re.findall(r"^\| `(\w+)`.*? \| ([\d.]+) s \| ([\d.]+) s \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(cases) == 5
    for rule, ours, theirs in rows:
        assert f"{cases[rule]['ours_cpu_s']:.3f}" == ours
        assert f"{cases[rule]['peer_cpu_s']:.3f}" == theirs
        assert cases[rule]["max_error"] < 1e-6


def test_the_runs_of_other_frameworks_are_the_stored_ones():
    runs = {peer: [run for run in STORED["runs"] if run["peer"] == peer] for peer in PEERS}
    rows = re.findall(r"^\| [^|]+ \| (\.\d{3} / \.\d{3}) \| (–|[\d.]+ MB) \| (\d+, \d+) \|", PAGE, re.MULTILINE)
    assert len(rows) == len(runs) == 6
    for (accuracy, sent, times), of_seeds in zip(rows, runs.values(), strict=True):
        mean = {key: fmean(run[key] for run in of_seeds) for key in ("mean", "bytes_per_node", "seconds", "cpu_s")}
        assert [run["seed"] for run in of_seeds] == [0, 1, 2]
        assert accuracy == " / ".join(f"{value:.3f}"[1:] for value in (mean["mean"], min(run["least"] for run in of_seeds)))
        assert sent == (f"{mean['bytes_per_node'] / 1e6:.2f} MB" if mean["bytes_per_node"] else "–")
        assert times == f"{mean['seconds']:.0f}, {mean['cpu_s']:.0f}"


def test_the_page_s_counts_match_the_repository():
    assert f"[{len(MIXERS.built_in)} algorithms]" in PAGE
    assert f"[{len(RULES.built_in)} rules]" in PAGE


def test_every_project_in_the_table_has_a_source():
    table, _, sources = PAGE.partition("## Where it was read")
    others = re.findall(r"^\| ([\w .]+?) \|", table.partition("## At a glance")[2], re.MULTILINE)
    assert len(others) == 8
    assert re.findall(r"^\| ([\w .]+?) \|", sources.partition("## Measured")[0], re.MULTILINE)[1:] == others
