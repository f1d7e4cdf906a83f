"""The transition table against what edges do under random schedules, and against the documentation."""

from __future__ import annotations

from pathlib import Path
from random import Random

from starling.gossip.exchange.edge_table import DECISIONS, TRANSITIONS, tables
from starling.gossip.exchange.rounds import Rounds
from starling.gossip.exchange.timeouts import Timeouts
from starling.gossip.wire.schema import Solicit
from tests.harness.edge_model import Pair, trouble
from tests.harness.edge_observer import ObservedEdge
from tests.harness.fixed_timeout import VIEW, Fixed

ROOT = Path(__file__).resolve().parents[3]


def test_edges_do_what_the_table_says_and_all_of_it():
    """Loss, repetition, reordering, refusals, resets and closes: each row happens, and nothing that is no row."""
    seen = set()
    for seed in range(20):
        pair = Pair(Random(seed), make=lambda *arguments: ObservedEdge(*arguments, rows=seen))
        for _ in range(4000):
            trouble(pair, loss=0.3, duplication=0.2, resets=True, closes=True, births=False)
    assert seen == set(TRANSITIONS)
    assert len(set(TRANSITIONS)) == len(TRANSITIONS)


def test_rounds_decide_what_the_table_says():
    ours, lead = 7, 3
    rounds = {
        "below r": [ours - 1],
        "r": [ours],
        "r + 1 … r + max_lead": [ours + 1, ours + lead],
        "above": [ours + lead + 1],
    }
    for name, computing, exchanging in DECISIONS:
        for theirs in rounds[name]:
            for phase, expected in (("compute", computing), ("open", exchanging)):
                core = Rounds(Timeouts(Fixed()), lead)
                core.compute(ours, {"a": 0.5}, VIEW)
                if phase == "open":
                    core.open(ours, {"a": 0.5}, VIEW, 0.0)
                decision = core.decide("a", Solicit(1, theirs, VIEW), 0.0)
                assert (
                    " ".join([type(decision).__name__, *([decision.reason] if hasattr(decision, "reason") else [])])
                    == expected
                )


def test_the_documentation_shows_the_tables():
    """After a change: paste `starling.gossip.exchange.edge_table.tables()` into docs/protocol.md."""
    assert tables() in (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
