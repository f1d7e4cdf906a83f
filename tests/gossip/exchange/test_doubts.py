"""Members that let a node down are relied on again after a while, and later if they do so again."""

from starling.gossip.exchange.doubts import DEMOTED, IN_VAIN, LONGEST, MAX_DEMOTED, Demotions, Doubts
from starling.gossip.exchange.marks import FORGIVEN, MAX_MARKED


def test_a_member_late_in_one_of_nine_turns_is_never_doubted():
    doubts = Doubts()
    for _ in range(100):
        doubts.late("a")
        assert "a" not in doubts
        for _ in range(round(1 / FORGIVEN)):
            doubts.in_time("a")
    for _ in range(IN_VAIN):
        doubts.late("a")
    assert "a" in doubts
    doubts.forget("a")
    assert "a" not in doubts


def test_demotions_become_longer_however_often_their_member_delivers_between():
    demotions, turn, lengths = Demotions(), 0, []
    for _ in range(8):
        demotions.failed("a", turn)
        first, turn = turn, turn + 1
        while demotions.active("a", turn):
            turn += 1
        lengths.append(turn - first - 1)
        demotions.delivered("a", turn)
    assert lengths == [32, 64, 128, 256, 512, 1024, 1024, 1024]
    demotions.failed("a", turn + LONGEST + LONGEST)
    assert demotions.active("a", turn + 2 * LONGEST + DEMOTED)
    assert not demotions.active("a", turn + 2 * LONGEST + DEMOTED + 1), "it did not fail for as long as the longest"


def test_what_is_remembered_of_members_is_bounded():
    doubts, demotions = Doubts(), Demotions()
    for index in range(MAX_DEMOTED + 1):
        doubts.late(f"n{index}")
        demotions.failed(f"n{index}", 0)
    assert len(doubts) == MAX_MARKED == len(demotions) == MAX_DEMOTED
