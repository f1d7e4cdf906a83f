"""The tests and files that the threat model names exist."""

import re
from pathlib import Path

from tests.harness.attackers import MORE, TIMES

HERE = Path(__file__).parent
PAGES = [HERE.parent / "docs" / name for name in ("threat-model.md", "privacy.md")]


def test_every_test_named_on_a_page_exists():
    """A row with a renamed or deleted test would claim protection that is not tested."""
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    written = {
        name for path in HERE.rglob("test_*.py") for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 60
    assert named - written == set()


def test_every_layer_names_an_existing_test_and_file():
    """A file stops the attack, and a test shows it."""
    text = PAGES[0].read_text()
    layers = text[text.index("## Layers") : text.index("## What peers share")]
    rows = [line.split("|")[1:-1] for line in layers.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 20
    for _name, _stops, where, shown in rows:
        assert re.search(r"`test_\w+`", shown)
        places = re.findall(r"`([\w./]+)`", where)
        assert places
        assert all((HERE.parent / place).exists() for place in places), places


def test_whatever_peers_share_has_a_bound_and_a_test():
    text = PAGES[0].read_text()
    shared = text[text.index("## What peers share") : text.index("## What is not stopped")]
    rows = [line.split("|")[1:-1] for line in shared.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15
    assert all(bound.strip() and of_one.strip() and "`test_" in shown for _what, bound, of_one, shown in rows)


def test_every_attack_on_the_transport_is_carried_out():
    text = PAGES[0].read_text()
    letters = re.findall(r"^\| ([A-Z]) \|", text, re.MULTILINE)
    assert letters == sorted(TIMES) == sorted(MORE) == list("ABCDEFGHIJKL")
