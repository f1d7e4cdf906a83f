"""The swarm as all attached nodes together see it, and its drawing. Pure: no screen is needed."""

import pytest

from starling.tui.drawing.circle_plot import draw, fits
from starling.tui.drawing.palette import style
from starling.tui.source import Reading
from starling.tui.swarm import Swarm, merge
from tests.harness.snapshots import IDS, full, snapshot
from tests.harness.tui.looking import many, reports, swarm


def plain(role):
    return style(role, dark=True)


def test_every_member_is_listed_once_with_its_own_status_if_attached():
    merged = merge(swarm(), 2)
    assert [member.peer for member in merged.members] == [*IDS]
    assert [member.label for member in merged.members] == [f"node-{number}" for number in range(8)]
    assert all(member.attached and member.known_by == 8 for member in merged.members)
    assert [member.own for member in merged.members].index(True) == 2


def test_a_detached_members_state_is_the_majority_report_and_at_a_tie_the_latest():
    two = [("z", "dead", {"last_seen_s": 9.0}), ("y", "suspect", {"last_seen_s": 1.0}), ("x", "alive", {})]
    merged = merge([reports("a", *two), reports("b", ("z", "alive", {}), ("y", "alive", {"last_seen_s": 2.0})), reports("c", two[0])], 0)
    states = {member.peer: (member.state, member.known_by) for member in merged.members}
    assert states["z"] == ("dead", 3)
    assert states["y"] == ("suspect", 2)
    assert states["x"] == ("alive", 1)


class Counted(str):
    """A peer id that counts comparisons."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)


def test_a_merge_takes_time_proportional_to_its_input(monkeypatch):
    """Searching each member in all reports would take 160,000 comparisons for 400 members."""
    one = reports("a", *((Counted(f"peer-{number}"), "alive", {}) for number in range(400)))
    monkeypatch.setattr(Counted, "compared", 0)
    assert len(merge([one], 0).members) == 401
    assert Counted.compared < 20 * 400


def test_edges_and_links_of_all_nodes_in_the_chosen_one_s_round_are_drawn_together():
    ranks = ("a", "b", "c")
    merged = merge(
        [
            reports("a", ("b", "alive", {"edge": True}), round=5, ranks=ranks, links=((0, 1),)),
            reports("b", ("a", "alive", {"edge": True}), round=5, ranks=ranks, links=((1, 2), (2, 2), (1, 7), (-1, 0))),
            reports("c", ("a", "alive", {"edge": True}), round=6, ranks=ranks, links=((2, 0),)),
        ],
        0,
    )
    assert merged.edges == (("a", "b"), ("a", "c"))
    assert merged.links == (("a", "b"), ("b", "c"))  # invalid entries, and those of another round, are left out


def test_unreported_figures_are_unknown():
    merged = merge([Reading("n", snapshot())], 0)
    assert merged.links is None
    assert (merged.distances, merged.steps_per_s, merged.share) == ((), None, None)
    assert merge([], 0) == Swarm()
    assert merge([Reading("n", None)], 0) == Swarm()


def test_sums_are_over_attached_nodes_and_a_share_needs_two_of_them():
    merged = merge(swarm(2), 1)
    assert merged.steps_per_s == 290.0 + 291.0
    assert merged.sent_per_s == 24_000.0
    assert merged.share == pytest.approx(860 / (840 + 860))
    assert merged.distances == pytest.approx((0.0123, 0.0128))


def test_a_vanished_node_has_the_others_reports_and_other_swarms_do_not_count():
    gone = Reading("node-1", full(1, steps_per_s=9.0), "the node went away")
    stranger = Reading("other", snapshot(peer="stranger", swarm="cd" * 16))
    merged = merge([swarm()[0], gone, stranger], 0)
    states = {member.peer: member for member in merged.members}
    assert states[IDS[1]].state == "alive"  # node-0 has not noticed yet
    assert not states[IDS[1]].attached
    assert merged.attached == 1
    assert "stranger" not in states


def test_a_node_that_ended_in_order_still_counts():
    ended = Reading("node-1", full(1, state="finished"), "the node went away")
    assert merge([swarm()[0], ended], 0).attached == 2


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [(38, 18), (104, 40)], ids=["80x24", "160x48"])
def test_every_member_can_be_read_on_the_circle_and_the_chosen_one_is_in_brackets(count, size):
    picture = draw(merge(swarm(count), 0), *size, plain).plain
    lines = picture.split("\n")
    assert len(lines) == size[1]
    assert all(len(line) == size[0] for line in lines)
    assert "●[node-0]" in picture
    for number in range(1, count):
        assert f"● node-{number}" in picture
    if count > 2:
        assert any("\u2801" <= sign <= "\u28ff" for sign in picture)  # there are edges


@pytest.mark.parametrize("count", [9, 12, 16])
def test_sixteen_members_can_be_read_on_a_small_terminal(count):
    picture = draw(merge(many(count), 0), 38, 18, plain).plain
    for number in range(1, count):
        assert f"● …{number:03}"[-4:] in picture or f"{number:03}" in picture


def test_too_many_members_become_lists_of_neighbors():
    assert not fits(40, 10, 104, 40)
    readings = many(40)
    lines = draw(merge(readings, 0), 60, 20, plain).plain.split("\n")
    assert len(lines) == 40
    assert lines[0] == "●[peer-000] ┄ peer-001, peer-002, peer-038, peer-039"


def test_lists_distinguish_partners_of_this_round_from_idle_edges():
    text = draw(merge(swarm(), 0), 20, 6, plain).plain
    assert text.split("\n")[0] == "●[node-0] ━ node-3 ┄ node-1, node-7"


def test_members_that_are_gone_leave_the_circle():
    readings = [reports("aa", ("bb", "dead", {"edge": True}), ("cc", "alive", {"edge": True}))]
    picture = draw(merge(readings, 0), 40, 18, plain).plain
    assert "bb" not in picture
    assert "● cc" in picture


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (3, 2), (20, 5)])
def test_any_terminal_size_is_drawn_without_error(size):
    draw(merge(swarm(), 0), *size, plain)
    draw(Swarm(), *size, plain)
