"""Verdicts on peers are carried out: bans survive restarts, and the owner's decision applies to the peer that was named."""

import math

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from starling.gossip.errors import ConfigError, GossipError
from starling.node.daemon.events import Events
from starling.node.daemon.trust.peer_policy import Enforcement, PeerPolicy, named
from starling.node.identity import Identity
from starling.node.storage.bans import decode, encode
from starling.node.storage.run_dir import RunDir
from starling.robust.reputation import GUEST_MOST, Decision
from tests.strategies import examples

ME, A, B, C = (Identity.from_seed(bytes([number]) * 32).peer_id for number in range(4))
UNIX_S = 1_700_000_000.0


class Told:
    """Records what a judge requested."""

    def __init__(self, inviters=None, keep_error=None, enforced=True, invitations=None):
        self.refused: dict[str, float] = {}
        self.deleted: list[str] = []
        self.kept: tuple[Decision, ...] | None = None
        self.recorded = Events(None, clock=lambda: 0.0)
        self.keep_error = keep_error
        self._inviters, self._invitations = inviters or {}, invitations or {}
        self.policy = PeerPolicy(ME, self.recorded, lambda: UNIX_S + trio.current_time(), self.keep)
        if enforced:
            self.enforce()

    def enforce(self):
        inviters, invitations = (lambda it, known=known: known.get(it, ()) for known in (self._inviters, self._invitations))
        self.policy.enforce(Enforcement(self.refuse, self.deleted.append, inviters, invitations, lambda: {A, B}))

    @property
    def events(self):
        return [event.name for event in self.recorded.recent if event.name != "peer_fault"]

    def refuse(self, peer, until):
        self.refused[peer] = until

    def keep(self, decisions):
        if self.keep_error is not None:
            raise self.keep_error
        self.kept = decisions

    def fault(self, peer, reason):
        self.policy.fault(peer, reason)


def judged(test):
    """Run a story in virtual time that does not begin at 0."""

    def run():
        async def story():
            await trio.sleep(1000.0)
            await test()

        trio.run(story, clock=MockClock(autojump_threshold=0))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@judged
async def test_a_ban_ends_connections_deletes_flows_and_is_stored_with_its_end():
    told = Told()
    told.fault(A, "equivocation")
    assert told.refused == {A: trio.current_time() + 3600.0}
    assert told.deleted == [A]
    assert told.kept == (Decision(A, "ban", UNIX_S + trio.current_time() + 3600.0, 1, "equivocation"),)
    assert told.events == ["peer_ban"]
    assert told.recorded.faults == {A: {"equivocation": 1}}
    told.fault(A, "equivocation")  # was under way
    assert told.deleted == [A]


@judged
async def test_a_quarantine_is_not_stored_and_soft_faults_have_no_effect():
    told = Told()
    told.fault(B, "late")
    assert told.refused == {}
    for _ in range(2):
        told.fault(A, "not_finite")
    assert told.events == ["peer_quarantine"]
    assert told.refused == {A: trio.current_time() + 120.0}
    assert told.kept is None


@judged
async def test_a_ban_continues_after_a_restart_for_its_remaining_time():
    first = Told()
    first.fault(A, "equivocation")
    first.policy.ban(B, why="spam")
    first.policy.trust(C)
    await trio.sleep(1000.0)
    again = Told()
    again.policy.resume(decode(encode(first.kept)))
    again.enforce()
    assert again.refused == {A: pytest.approx(trio.current_time() + 2600.0), B: math.inf}
    assert again.policy.standing(B).why == "spam"
    assert again.policy.standing(C).trusted
    await trio.sleep(2700.0)
    assert again.policy.allows(A)
    assert not again.policy.allows(B)


@judged
async def test_the_inviter_of_a_liar_is_blamed_too():
    told = Told(inviters={A: (C, B), B: (ME,)})
    told.fault(A, "equivocation")
    assert told.policy.standing(B).score == GUEST_MOST
    assert told.policy.standing(C).score == 0.0, "the direct inviter alone"
    assert set(told.refused) == {A}
    told.fault(B, "not_finite")  # a guest of our own: there is no other inviter to blame
    assert told.policy.standing(ME).score == 0.0


@judged
async def test_guests_of_a_banned_peer_are_refused_with_it():
    """It could have invited itself under another key."""
    told = Told(inviters={A: (C, B)})
    told.policy.ban(C, 60.0)
    assert told.refused == dict.fromkeys((A, C), trio.current_time() + 60.0)
    assert told.deleted == [C, A]
    assert not told.policy.allows(A)
    assert told.policy.allows(B)
    told.policy.unban(C)
    assert told.refused == dict.fromkeys((A, C), -math.inf)
    assert told.policy.allows(A)


@judged
async def test_a_new_guest_of_a_banned_peer_is_refused_when_it_joins():
    inviters = {A: ()}
    told = Told(inviters=inviters)
    told.policy.ban(C, 60.0)
    told.policy.joined(A)
    assert A not in told.refused
    inviters[A] = (C,)
    told.policy.joined(A)
    assert told.refused[A] == trio.current_time() + 60.0
    await trio.sleep(61.0)
    assert told.policy.allows(A)


@judged
async def test_a_ban_holds_for_a_peer_s_invitation_under_another_key_after_a_restart():
    """After a restart no node knows who used an invitation before, and to make a key costs nothing."""
    invitations = {A: ("above", "its own")}
    first = Told(invitations=invitations)
    first.fault(A, "equivocation")
    again = Told(invitations={B: ("above", "its own"), C: ("above",), ME: ("another's",)})
    again.policy.resume(decode(encode(first.kept)))
    again.enforce()
    for peer in (B, C):
        again.policy.joined(peer)
    assert again.refused == dict.fromkeys((A, B), pytest.approx(trio.current_time() + 3600.0))
    assert not again.policy.allows(B)
    assert again.policy.allows(C), "who invited A may invite others"
    again.policy.trust(C)
    assert [it.invitation for it in again.kept if it.peer == A] == ["its own"], "kept by a later run as well"
    again.policy.unban(A)
    assert again.policy.allows(B)
    assert again.refused[B] == -math.inf


@judged
async def test_the_invitation_of_a_peer_that_was_banned_while_absent_is_learned_when_it_joins():
    invitations = {A: ()}
    told = Told(invitations=invitations)
    told.policy.ban(A)
    assert [it.invitation for it in told.kept] == [""]
    invitations |= {A: ("its own",), B: ("its own",)}
    told.policy.joined(A)
    assert [it.invitation for it in told.kept] == ["its own"]
    told.kept = None
    told.policy.joined(A)
    assert told.kept is None, "nothing new to write"
    told.policy.joined(B)
    assert told.refused[B] == math.inf


@judged
async def test_a_quarantine_does_not_extend_to_the_peer_s_guests():
    told = Told(inviters={A: (C,)})
    for _ in range(2):
        told.fault(C, "not_finite")
    assert told.policy.standing(C).state == "quarantine"
    assert told.policy.allows(A)


@judged
async def test_the_owner_can_ban_trust_and_unban():
    told = Told()
    assert told.policy.ban(A, 60.0) == A
    assert told.refused[A] == trio.current_time() + 60.0
    assert told.policy.unban(A) == A
    assert told.refused[A] == -math.inf
    assert told.kept == ()
    assert told.policy.trust(A[-6:]) == A
    for _ in range(10):
        told.fault(A, "equivocation")
    assert told.refused[A] == -math.inf
    assert told.policy.standing(A).trusted
    with pytest.raises(GossipError, match="neither banned nor trusted"):
        told.policy.unban(B)
    with pytest.raises(GossipError, match="this node itself"):
        told.policy.ban(ME)
    told.policy.ban(C)
    assert told.policy.unban(C[-8:]) == C, "no member any more"


@judged
async def test_a_full_disk_is_reported_once_and_the_ban_still_applies():
    told = Told(keep_error=ConfigError("disk full"))
    told.policy.ban(A)
    told.policy.ban(B)
    assert told.events.count("cannot_keep_bans") == 1
    assert set(told.refused) == {A, B}


@judged
async def test_exchanges_in_time_make_a_peer_active_and_missed_ones_stale():
    told = Told()
    for _ in range(20):
        told.policy.noted({A: "committed", B: "timeout", C: "busy"}, clipped={A})
        await trio.sleep(1.0)
    assert told.policy.standing(A).state == "active"
    assert told.policy.standing(B).staleness == pytest.approx(1 - 0.9**20)
    assert told.policy.standing(C).staleness is None
    assert told.policy.standing(A).clipped == pytest.approx(1 - 0.9**20)
    told.policy.ban(A)
    told.policy.noted({A: "timeout"})  # a banned peer cannot answer
    assert told.policy.standing(A).staleness == 0.0


def test_a_peer_is_found_by_its_id_or_either_end_of_it():
    known = {A, B}
    for part in (A, A[-7:], f"…{A[-7:]}", A[:40]):
        assert named(part, known) == A
    assert named(C, known) == C  # a whole id is accepted for an unknown peer
    for part, problem in ((A[:8], "may be any of 2"), ("nobody", "no known peer is"), ("", "no known peer is"), ("…", "no known peer is")):
        with pytest.raises(ConfigError, match=problem) as caught:
            named(part, known)
        assert "\n" not in str(caught.value)


@given(
    decisions=st.lists(
        st.builds(
            Decision,
            st.text(min_size=1, max_size=50),
            st.just("ban"),
            st.floats(0, 1e12) | st.just(math.inf),
            st.integers(0, 1000),
            st.text(max_size=100),
        )
        | st.builds(Decision, st.text(min_size=1, max_size=50), st.just("trust")),
        max_size=5,
    )
)
@examples(50)
def test_stored_decisions_survive_a_restart(decisions):
    assert decode(encode(decisions)) == tuple(decisions)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"peer":"a","kind":"adore"}]', '[{"peer":"","kind":"ban"}]', "[" * 9999])
def test_a_damaged_file_of_bans_is_an_error(text, tmp_path):
    with pytest.raises(ValueError, match=r"[a-z]"):
        decode(text)
    place, stored = RunDir(tmp_path), (Decision(A, "ban", UNIX_S, 2, "x"), Decision(B, "trust"))
    place.keep_decisions(stored)
    assert place.known_decisions() == stored
    (tmp_path / "decisions.json").write_text(text)
    with pytest.raises(ConfigError, match="ends all bans"):
        place.known_decisions()
