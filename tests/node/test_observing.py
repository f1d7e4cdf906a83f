"""docs/observing.md lists every existing metric, event and field, and no other."""

import ast
import re
from pathlib import Path

from msgspec import structs

from starling.node.config.schema import MetricsSection, RecordSection
from starling.node.daemon.observe.recorder import Totals, round_fields
from tests.harness.scrape import exported

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/observing.md").read_text()
COMMON = {"level", "text"}
BY_VERDICT = {"peer_quarantine", "peer_unban", "peer_trust"}  # its name is the decision's
IN_THE_LOG_ALONE = {"library"}


def rows(heading):
    """Return [(names in the first cell, the second cell)] of the table below a line."""
    table = PAGE.split(heading, 1)[1].split("\n|---|---|\n", 1)[1].split("\n\n", 1)[0]
    cells = [line.strip("| ").split("|", 1) for line in table.splitlines()]
    return [(set(re.findall(r"`(\w+)`", first)), "".join(second)) for first, *second in cells]


def events():
    """Return {name: fields} of every event in the source: in a call of `event`, or in an `Event` or `Note` of a core."""
    found = {}
    for path in (*(ROOT / "node").rglob("*.py"), *(ROOT / "gossip").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not call.args or not isinstance(call.args[0], ast.Constant):
                continue
            if isinstance(call.func, ast.Attribute) and call.func.attr == "event":
                fields = {keyword.arg for keyword in call.keywords} - COMMON
            elif isinstance(call.func, ast.Name) and call.func.id in {"Event", "Note"}:
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                fields = {key.value for each in given if isinstance(each, ast.Dict) for key in each.keys}
            else:
                continue
            found.setdefault(call.args[0].value, set()).update(fields)
    return found


def test_every_metric_is_listed_and_no_other():
    listed = set().union(*(names for names, _ in rows("`/healthz` is 200")))
    assert {name for name in listed if name.startswith("starling_")} == set(exported())


def test_every_event_is_listed_with_its_fields_and_no_other():
    emitted = events()
    listed = {name: cell for names, cell in rows("Further fields of events:") for name in names}
    assert listed.keys() == emitted.keys() | BY_VERDICT | IN_THE_LOG_ALONE
    for name, fields in emitted.items():
        assert fields <= set(re.findall(r"`(\w+)`", listed[name])), name


def test_every_field_of_the_line_a_round_is_listed_and_no_other():
    listed = set().union(*(names for names, _ in rows("**`round`**")))
    assert listed == set(round_fields(Totals(at_s=0.0), Totals(at_s=1.0)))


def test_a_record_has_every_key_and_the_announced_defaults():
    named = set(re.findall(r"`(record\.[a-z_]+|metrics\.[a-z_]+)`", PAGE))
    keys = {f"record.{key}" for key in RecordSection.__struct_fields__}
    assert keys | {"metrics.listen"} <= named
    assert structs.asdict(RecordSection()) == {"every_s": 0.0, "max_bytes": 64 << 20}
    assert MetricsSection().listen == ""
