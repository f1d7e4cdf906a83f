"""Events, faults and curves stay bounded however long a run lasts and whatever peers do."""

from hypothesis import given
from hypothesis import strategies as st

from starling.node.daemon.events import MAX_EVENTS, MAX_PEERS, MAX_REASONS, Events
from starling.node.daemon.progress import Rate


class RecordingLog:
    """Records log events."""

    def __init__(self):
        self.lines = []

    def write(self, level, name, **fields):
        self.lines.append((level, name, fields))


def test_an_event_goes_to_the_status_and_with_its_fields_to_the_log():
    log = RecordingLog()
    told = Events(log, clock=lambda: 7.0)
    told.event("peer_joined", "a joined", level="warning", peer="a")
    (event,) = told.recent
    assert (event.time_s, event.name, event.text, event.level) == (7.0, "peer_joined", "a joined", "warning")
    assert log.lines == [("warning", "peer_joined", {"text": "a joined", "peer": "a"})]


def test_only_the_last_fifty_events_are_stored_oldest_first():
    told = Events(None, clock=lambda: 7.0)
    for number in range(MAX_EVENTS + 7):
        told.event("tick", str(number))
    assert [event.text for event in told.recent] == [str(number) for number in range(7, MAX_EVENTS + 7)]


def test_text_from_a_peer_cannot_move_the_terminal_s_cursor():
    told = Events(None, clock=lambda: 7.0)
    told.event("peer_joined", "evil\x1b[2J\r\nname" + "x" * 1000)
    text = told.recent[0].text
    assert text.isprintable()
    assert len(text) <= 300


def test_every_fault_is_counted_but_a_flood_makes_a_few_events():
    told = Events(None, clock=lambda: 7.0)
    for _ in range(1000):
        told.fault("a", "bad_frame")
    assert told.faults == {"a": {"bad_frame": 1000}}
    assert told.faults_of("a") == 1000
    assert told.faults_of("b") == 0
    assert len(told.recent) == 10  # 1, 2, 4 … 512


def test_faults_of_invented_peers_and_reasons_do_not_fill_the_memory():
    told = Events(None, clock=lambda: 7.0)
    for number in range(MAX_PEERS + 100):
        told.fault(f"peer-{number}", "bad_frame")
    for number in range(MAX_REASONS + 10):
        told.fault("loud", f"reason-{number}")
    assert len(told.faults) == MAX_PEERS
    assert len(told.faults["loud"]) == MAX_REASONS
    assert told.faults_of("loud") == MAX_REASONS + 10


def test_listeners_get_every_event_and_a_few_of_a_flood_of_faults():
    heard = []
    told = Events(None, clock=lambda: 7.0)
    told.changes.notify = lambda: heard.append(len(told.recent))
    told.event("peer_joined", "a joined")
    for _ in range(1000):
        told.fault("b", "nonsense")
    assert heard == list(range(1, 12))


def test_a_rate_covers_recent_notes_and_falls_while_the_next_is_overdue():
    rate = Rate(window=4)
    assert rate.per_s(0.0) is None
    for second in range(20):
        rate.add(float(second), 10 * second if second < 10 else 90 + 20 * (second - 9))
    assert rate.per_s() == rate.per_s(20.0) == 20.0
    assert rate.per_s(24.0) == 10.0
    rate.add(21.0, 0)
    assert rate.per_s(30.0) is None, "an engine that died took its last steps along"
    rate.add(21.0, 5)
    assert rate.per_s() is None, "in no time there is no rate"


@given(st.lists(st.tuples(st.floats(1e-3, 10.0), st.floats(0.0, 1.5), st.integers(0, 100)), min_size=2, max_size=40))
def test_rates_never_exceed_the_rate_in_computing_time(rounds):
    rate, now, count, busy_s = Rate(window=4), 0.0, 0, 0.0
    for elapsed, share, steps in rounds:
        now, count, busy_s = now + elapsed, count + steps, busy_s + share * elapsed
        rate.add(now, count, busy_s)
    alone = rate.per_busy_s()
    assert alone is None or rate.per_s() <= alone
