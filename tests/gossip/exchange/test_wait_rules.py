"""How long a peer is waited for, rule by rule: tables of facts and of the seconds that each rule gives, None where it does not apply."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.exchange import wait_rules as rules
from starling.gossip.exchange.wait_rules import Context, PeerFacts, seconds_for

PEER = PeerFacts(usual_s=0.5)
ROUND = Context(learned_s=2.0, lag_s=1.0, unlinked_s=0.0, shortest_s=0.25, longest_s=10.0, payload_s=0.0, exchange_s=0.125)
TABLE = {
    rules.no_answer_to_probes: [
        ({}, {}, None),
        ({"silent": True}, {}, 0.5),
        ({"silent": True}, {"unlinked_s": 3.0}, 3.5),
        ({"silent": True, "withdrawn": True}, {"unlinked_s": 3.0}, 0.5),
        ({"silent": True, "needs_s": 9.0, "quickest_s": 9.0}, {}, 0.5),
        ({"silent": True, "usual_s": 0.01}, {}, 0.125),
        ({"silent": True}, {"payload_s": 1.5}, 1.5),
        ({"silent": True, "usual_s": 50.0}, {}, 4.0),
        ({"silent": True, "usual_s": 50.0, "late": True}, {}, 3.0),
        ({"silent": True}, {"out_of_phase": True, "position": "ahead"}, 0.5),
    ],
    rules.says_nothing: [
        ({}, {}, None),
        ({"mute": True}, {}, 0.25),
        ({"mute": True}, {"exchange_s": 0.03125}, 0.0625),
        ({"mute": True}, {"exchange_s": 0.0}, 0.25),
        ({"mute": True}, {"payload_s": 0.75}, 0.75),
        ({"mute": True}, {"payload_s": 75.0}, 4.0),
        ({"mute": True, "late": True}, {"payload_s": 75.0}, 3.0),
        ({"mute": True}, {"out_of_phase": True, "position": "ahead"}, 0.25),
        ({"mute": True, "needs_s": 9.0, "quickest_s": 9.0}, {"unlinked_s": 3.0}, 0.25),
    ],
    rules.deadline_withdrawn: [
        ({}, {}, None),
        ({"withdrawn": True}, {}, 0.5),
        ({"withdrawn": True}, {"unlinked_s": 3.0}, 0.5),
        ({"withdrawn": True}, {"out_of_phase": True}, None),
        ({"withdrawn": True, "quickest_s": 0.3}, {}, 0.5),
        ({"withdrawn": True, "quickest_s": 0.3}, {"exchange_s": 1.0}, 0.6),
        ({"withdrawn": True, "quickest_s": 9.0}, {"exchange_s": 0.3}, 1.2),
        ({"withdrawn": True, "needs_s": 9.0}, {}, 1.0),
        ({"withdrawn": True, "usual_s": 50.0}, {}, 4.0),
    ],
    rules.lately_gone: [
        ({}, {}, None),
        ({"lately_gone": True}, {}, 0.5),
        ({"lately_gone": True}, {"unlinked_s": 3.0}, 3.5),
        ({"lately_gone": True}, {"out_of_phase": True}, None),
        ({"lately_gone": True, "quickest_s": 9.0}, {"exchange_s": 0.3}, 1.2),
        ({"lately_gone": True, "usual_s": 50.0, "late": True}, {}, 3.0),
    ],
    rules.others_ahead: [
        ({}, {}, None),
        ({}, {"position": "ahead"}, None),
        ({}, {"position": "behind"}, 1.5),
        ({"usual_s": 0.01}, {"position": "behind"}, 1.25),
        ({"usual_s": 0.01}, {"position": "behind", "shortest_s": 0.01}, 1.125),
        ({"needs_s": 9.0}, {"position": "behind"}, 2.0),
        ({}, {"position": "behind", "payload_s": 0.75}, 1.75),
        ({}, {"position": "behind", "unlinked_s": 3.0}, 4.5),
        ({"withdrawn": True}, {"position": "behind", "unlinked_s": 3.0, "out_of_phase": True}, 1.5),
        ({"usual_s": 10.0}, {"position": "behind", "learned": False}, 1.25),
        ({"usual_s": 10.0}, {"position": "behind", "learned": False, "payload_s": 0.75}, 1.75),
        ({"usual_s": 50.0}, {"position": "behind"}, 4.0),
    ],
    rules.others_behind: [
        ({}, {}, None),
        ({}, {"position": "ahead"}, None),
        ({}, {"out_of_phase": True}, None),
        ({}, {"position": "ahead", "out_of_phase": True}, 10.0),
        ({"needs_s": 20.0}, {"position": "ahead", "out_of_phase": True, "learned_s": 9.0}, 21.0),
    ],
    rules.comes_late: [
        ({}, {}, None),
        ({"late": True}, {}, None),
        ({"needs_s": 5.0}, {}, 6.0),
        ({"needs_s": 50.0}, {}, 8.0),
        ({"needs_s": 0.5}, {}, 4.0),
        ({"needs_s": 0.5, "late": True}, {}, 3.0),
    ],
    rules.late_last_time: [
        ({}, {}, None),
        ({"late": True}, {}, 3.0),
        ({"late": True}, {"unlinked_s": 3.0}, 6.0),
        ({"late": True}, {"out_of_phase": True}, None),
        ({"late": True, "owes": True}, {}, 3.0),
        ({"late": True}, {"learned": False}, 3.0),
        ({"late": True, "owes": True}, {"learned": False, "unlinked_s": 3.0}, 4.25),
    ],
    rules.in_time: [({}, {}, 4.0), ({}, {"unlinked_s": 3.0}, 7.0), ({"late": True}, {"out_of_phase": True}, 4.0)],
}


@pytest.mark.parametrize(
    ("rule", "peer", "context", "seconds"),
    [pytest.param(rule, *row, id=f"{rule.__name__}-{number}") for rule, rows in TABLE.items() for number, row in enumerate(rows)],
)
def test_each_rule_gives_what_its_row_says(rule, peer, context, seconds):
    assert rule(replace(PEER, **peer), replace(ROUND, **context)) == seconds


def test_every_rule_has_a_table_with_a_case_in_which_it_decides():
    assert tuple(TABLE) == rules.RULES
    assert all(any(seconds is not None for _, _, seconds in rows) for rows in TABLE.values())


@pytest.mark.parametrize(
    ("peer", "context", "decides"),
    [
        ({"silent": True, "withdrawn": True, "lately_gone": True}, {"position": "behind"}, rules.no_answer_to_probes),
        ({"silent": True, "mute": True}, {}, rules.no_answer_to_probes),
        ({"mute": True, "withdrawn": True, "lately_gone": True}, {"position": "behind"}, rules.says_nothing),
        ({"mute": True}, {"position": "ahead", "out_of_phase": True}, rules.says_nothing),
        ({"withdrawn": True, "lately_gone": True}, {"position": "behind"}, rules.deadline_withdrawn),
        ({"lately_gone": True, "needs_s": 5.0}, {"position": "behind"}, rules.lately_gone),
        ({"needs_s": 5.0, "late": True}, {"position": "behind", "out_of_phase": True}, rules.others_ahead),
        ({"needs_s": 5.0, "late": True}, {"position": "ahead", "out_of_phase": True}, rules.others_behind),
        ({"needs_s": 5.0, "late": True}, {"out_of_phase": True}, rules.comes_late),
        ({"late": True}, {}, rules.late_last_time),
        ({"late": True}, {"out_of_phase": True}, rules.in_time),
        ({}, {}, rules.in_time),
    ],
)
def test_the_first_matching_rule_decides(peer, context, decides):
    facts, around = replace(PEER, **peer), replace(ROUND, **context)
    assert next(rule for rule in rules.RULES if rule(facts, around) is not None) is decides
    assert seconds_for(facts, around) == decides(facts, around)


seconds = st.floats(0.0, 100.0)
facts = st.builds(
    PeerFacts,
    usual_s=seconds,
    silent=st.booleans(),
    mute=st.booleans(),
    lately_gone=st.booleans(),
    withdrawn=st.booleans(),
    late=st.booleans(),
    needs_s=st.none() | seconds,
    quickest_s=seconds,
)
contexts = st.builds(
    Context,
    learned_s=seconds,
    lag_s=seconds,
    unlinked_s=seconds,
    shortest_s=seconds,
    longest_s=seconds,
    payload_s=seconds,
    exchange_s=seconds,
    position=st.sampled_from(["level", "behind", "ahead"]),
    out_of_phase=st.booleans(),
)


@given(facts, contexts)
def test_a_known_peer_gets_at_most_twice_the_others_time_or_an_exchange_s_maximum(peer, context):
    most_s = max(rules.MAX_FACTOR * rules.in_time(PEER, context), context.longest_s)
    assert 0.0 <= seconds_for(peer, context) <= most_s


@given(facts, contexts)
def test_silence_withdrawal_absence_and_peers_ahead_never_extend_deadlines(peer, context):
    less = replace(peer, silent=False, mute=False, withdrawn=False, lately_gone=False)
    level = replace(context, position="level")
    assert seconds_for(peer, context if context.position == "behind" else level) <= seconds_for(less, level)
