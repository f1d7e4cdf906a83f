"""Figures fit their column, and a missing figure is a dash."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from starling.node.status import format as show
from starling.node.status.snapshot import Transfer
from tests.harness.snapshots import snapshot


@pytest.mark.parametrize("of", [show.count, show.figure, show.size, show.rate, show.speed, show.duration, show.age, show.latency])
def test_a_missing_figure_is_a_dash_and_never_zero(of):
    assert of(None) == "–"
    assert of(0).startswith("0")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (show.size(999), "999 B"),
        (show.size(1000), "1.0 kB"),
        (show.size(1_234_567), "1.2 MB"),
        (show.size(99_960_000), "100 MB"),
        (show.size(999_600), "1.0 MB"),
        (show.rate(12_345), "12 kB/s"),
        (show.figure(0.93417), "0.934"),
        (show.figure(0.00001), "1.00e-05"),
        (show.figure(float("nan")), "–"),
        (show.duration(5), "5 s"),
        (show.duration(125), "2 min 5 s"),
        (show.duration(3600), "1 h"),
        (show.duration(90_061), "1 d 1 h"),
        (show.duration(-3), "0 s"),
        (show.age(3599), "59 min"),
        (show.latency(0.0008), "0.8 ms"),
        (show.latency(1.26), "1.3 s"),
        (show.privacy(1.2345, 1e-5), "1.234 (δ 1e-05)"),
        (show.privacy(0.0, 1e-5), "0.000 (δ 1e-05)"),
        (show.privacy(None, None), "–"),
        (show.privacy(None, 1e-5), "∞ (δ 1e-05)"),
        (show.rounds(42, 200), "42/200"),
        (show.rounds(4200, 0), "4,200"),
        (show.short("12D3KooWabcdefg"), "…abcdefg"),
        (show.short("node-1"), "node-1"),
        (show.short("a-long-name-of-a-node", 12), "a-lon…a-node"),
        (show.progress(Transfer("a", "model", 5, 10)), "50 % of 10 B"),
        (show.progress(Transfer("a", "model", 11, 10)), "100 % of 10 B"),
        (show.progress(Transfer("a", "exchange", 12_000_000)), "12 MB"),
    ],
)
def test_figures_are_formatted_with_units(said, expected):
    assert said == expected


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, ""),
        ({"waited": 0.004, "waited_for": "12D3KooWabcdefg"}, ""),
        ({"waited": 0.0}, ""),
        ({"waited": 0.375, "waited_for": "12D3KooWabcdefg"}, "38 % of the time waiting for late peers, most for …abcdefg"),
        ({"behind": 3}, "3 rounds behind others"),
        (
            {"waited": 0.01, "waited_for": "12D3KooWabcdefg", "behind": 3},
            "1 % of the time waiting for late peers, most for …abcdefg; 3 rounds behind others",
        ),
        ({"waited": 0.5, "waited_for": "12D3KooWabcdefg", "state": "finished"}, ""),
    ],
)
def test_whom_a_node_waits_for_is_told_while_it_trains(known, said):
    assert show.pace(snapshot(**known)) == said


@given(st.floats(0, 1e18))
def test_no_figure_is_wider_than_its_column(value):
    assert len(show.size(value)) <= 7
    assert len(show.age(min(value, 1e8))) <= 7
    assert len(show.figure(value)) <= 9


@given(st.text())
def test_text_of_others_is_one_printable_line(text):
    assert show.clean(text).isprintable()


ALIKE = st.text("ab語 \x00…", max_size=30) | st.builds("12D3KooW{}".format, st.text("ab", min_size=30, max_size=44))


@given(st.lists(ALIKE, max_size=12, unique=True))
def test_labels_are_unique_and_as_short_as_possible(texts):
    """Peers choose their ids, and users choose names with common beginnings and ends."""
    found = show.labels({text: text for text in texts})
    assert sorted(found) == sorted(texts)
    assert len(set(found.values())) == len(texts)
    if len({show.short(text) for text in texts}) == len(texts):
        assert all(cell_len(label) <= show.NAME_WIDTH for label in found.values())


@given(st.text(max_size=60), st.integers(4, 30))
def test_a_short_name_fits_and_a_name_that_fits_is_whole(text, width):
    short = show.short(text, width)
    assert cell_len(short) <= width
    if cell_len(show.clean(text)) <= width:
        assert short == show.clean(text)
