"""docs/glossary.md explains every word in tables of commands and the terminal UI: names of rows and columns, and their values."""

import io
import re
from typing import get_args, get_type_hints

import pytest
from rich.console import Console

from starling.node.cli import inspect_node
from starling.node.demo.summary import NodeState
from starling.node.status.snapshot import Event, PeerStatus, StatusSnapshot, Transaction
from starling.tui.drawing import palette
from starling.tui.text import costs, exchanges, health, nodes, peers, swarm
from tests.harness.processes import ROOT
from tests.harness.snapshots import snapshot

PAGE = (ROOT / "docs" / "glossary.md").read_text()
TABLES = PAGE.partition("## On the screen")[2]
NAMES = {"accuracy"}  # the value of a metric, which the page calls `value`


def known():
    """Return the words of the first column, and those in code elsewhere."""
    first = re.findall(r"^\| (.*?) \|", TABLES, re.MULTILINE)
    return {word.strip("` ") for cell in first for word in cell.split(",")} | set(re.findall(r"`([\w ]+)`", TABLES))


def drawn(renderable, width=250):
    """Return the lines of a table in a wide terminal."""
    out = io.StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue().splitlines()


def of_status():
    full = snapshot(
        seat="stage 1 of 2", best=0.9, best_round=7, distance=0.1, noise_scale=8.0, delta=1e-5, epsilon=1.0, reachability="hidden", behind=2
    )
    return [re.split(r"  +", line.strip())[0] for line in drawn(inspect_node.status_table(full))]


def of_peers():
    return [
        word
        for word in re.split(
            r"  +", drawn(inspect_node.peer_table((PeerStatus(peer="12D3KooWa", state="alive", inviter="12D3KooWb"),), 250))[0].strip()
        )
        if word
    ]


def words(kind, field):
    return get_args(get_type_hints(kind)[field])


OUTPUT = {
    "status": of_status,
    "peers": of_peers,
    "pages": lambda: [
        *(column.name for column in peers.COLUMNS),
        *exchanges.COLUMNS,
        *nodes.COLUMNS,
        *swarm.COLUMNS,
        *(name for name, _ in health.trains(snapshot())),
        *(name for name, _ in costs.costs(snapshot(delta=1e-5, epsilon=1.0, behind=2))),
    ],
    "states": lambda: [
        *words(StatusSnapshot, "state"),
        *words(PeerStatus, "state"),
        *words(PeerStatus, "standing"),
        *words(PeerStatus, "way"),
        *words(Transaction, "outcome"),
        *words(Event, "level"),
        *words(StatusSnapshot, "reachability"),
        *get_args(NodeState),
        *palette.VERDICT_SIGNS,
    ],
}


@pytest.mark.parametrize("place", OUTPUT)
def test_every_word_of_the_output_is_in_the_glossary(place):
    shown = set(OUTPUT[place]()) - {""} - NAMES
    assert len(shown) > 10
    assert shown - known() == set()
