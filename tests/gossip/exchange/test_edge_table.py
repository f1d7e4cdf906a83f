"""The tables in docs/protocol.md agree with edges under random schedules, and with the decisions of rounds."""

from itertools import takewhile
from pathlib import Path
from random import Random

import pytest

from starling.gossip.exchange.link_deadlines import LinkDeadlines
from starling.gossip.exchange.pace import Rounds
from starling.gossip.wire.schema import Request, Solicit
from tests.harness.edge_model import Pair, random_event
from tests.harness.edge_observer import ObservedEdge
from tests.harness.fixed_timeout import VIEW, Fixed

PROTOCOL = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"


def table(header: str) -> list[list[str]]:
    """Return the cells of the table whose first row begins with `header`."""
    lines = iter(PROTOCOL.read_text(encoding="utf-8").splitlines())
    next(line for line in lines if line.startswith(header))
    next(lines)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in takewhile(lambda line: line.startswith("|"), lines)]


def test_edges_follow_every_row_of_the_table():
    rows = [
        (end, state, event, to, tuple(calls.split(", ")) if calls else ())
        for end, states, event, to, calls in table("| end | state |")
        for state in states.split(", ")
    ]
    seen = set()
    for seed in range(60):
        pair = Pair(Random(seed), make=lambda *arguments: ObservedEdge(*arguments, rows=seen))
        for _ in range(4000):
            random_event(pair, loss=0.3, duplication=0.2, resets=True, closes=True, restarts=False)
    assert seen == set(rows)
    assert len(seen) == len(rows)


@pytest.mark.parametrize(
    "make", [lambda at: Solicit(1, at, VIEW), lambda at: Request(1, 1, 0, at, VIEW, 0.5, 1.0, b"")], ids=["solicit", "request"]
)
@pytest.mark.parametrize(("row", "offsets"), [("below r", (-1,)), ("r", (0,)), ("r + 1 … r + max_lead", (1, 3)), ("above", (4,))])
def test_rounds_follow_the_table(row, offsets, make):
    expected = {cells[0]: cells[1:] for cells in table("| round of a request |")}[row]
    for offset in offsets:
        core = Rounds(LinkDeadlines(Fixed()), max_lead=3)
        core.compute(7, {"a": 0.5}, VIEW)
        request_ = make(7 + offset)
        decisions = [core.decide("a", request_, 0.0)]
        core.open(7, {"a": 0.5}, VIEW, 0.0)
        decisions.append(core.decide("a", request_, 0.0))
        assert [f"{type(it).__name__} {getattr(it, 'reason', '')}".strip() for it in decisions] == expected
