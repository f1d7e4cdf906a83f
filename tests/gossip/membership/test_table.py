"""Tables compared by digests: two different ones become the union of the newest records, at a cost proportional to the difference."""

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.membership.member_list import order_of
from starling.gossip.membership.table import Table, entry_of, key_of, well_formed
from starling.gossip.wire import schema as wire
from starling.gossip.wire.frames import decode, encode
from tests.harness.detectors import record

held = st.dictionaries(st.integers(0, 400).map(str), st.integers(0, 3), max_size=120)
"""Peer -> version of its record."""


def table_of(versions):
    return Table((entry_of(record(peer, version=version)), peer) for peer, version in versions.items())


def newest(one, other):
    return {peer: max(one.get(peer, -1), other.get(peer, -1)) for peer in one | other}


def compare(one, other, start=0):
    """Let the first start a comparison of both tables; return the bytes exchanged. Afterwards each has received the other's records."""
    tables = [one, other]
    queue, octets, steps = [(1, table_of(one).first_message(differs=False))], 0, 0
    while queue:
        to, message = queue.pop(0)
        octets, steps = octets + len(encode(message)), steps + 1
        assert decode("control", "a", encode(message)) == message
        assert steps < 10_000, "a comparison ends"
        mine = tables[to]
        match message:
            case wire.Compare():
                assert well_formed(message)
                found = table_of(mine).answer(message, start)
                if found.compare != wire.Compare():
                    queue.append((1 - to, found.compare))
                if found.wanted:
                    queue.append((1 - to, wire.Want(found.wanted)))
                told = found.missing
            case wire.Want(keys):
                told = [peer for peer in map(table_of(mine).peer_of, keys) if peer is not None]
            case wire.Sync(records):
                told = [it.peer for it in records if mine.get(it.peer, -1) > it.version]
                for it in records:
                    mine[it.peer] = max(mine.get(it.peer, -1), it.version)
        records = [record(peer, version=mine[peer]) for peer in told]
        parts = range(0, len(records), wire.MAX_RECORDS)
        queue += [(1 - to, wire.Sync(tuple(records[at : at + wire.MAX_RECORDS]))) for at in parts]
    return octets


@given(held, held, st.integers(0, 2**32))
def test_two_tables_become_the_union_of_the_newest_records(one, other, start):
    union = newest(one, other)
    for again in range(60):
        before = dict(one), dict(other)
        compare(one, other, start + again)
        if one == other:
            break
        assert (one, other) != before, "each comparison repairs something"
    assert one == other == union


def test_equal_tables_cost_one_small_frame():
    table = {str(each): 0 for each in range(10_000)}
    assert compare(dict(table), dict(table)) < 40


@pytest.mark.parametrize("n", [100, 1000, 10_000])
@pytest.mark.parametrize("differences", [1, 4])
def test_a_comparison_costs_bytes_by_what_differs_and_by_the_logarithm_of_all(n, differences):
    one = {str(each): 0 for each in range(n)}
    other = dict(one)
    for each in range(differences):
        other[str(7 * each)] = 1
    octets = compare(one, other)
    assert one == other
    assert octets < 150 * differences * log2(n)


def test_a_new_node_gets_all_records_in_one_answer():
    table, alone = {str(each): 0 for each in range(300)}, {"new": 0}
    message = table_of(alone).first_message(differs=True)
    found = table_of(table).answer(message, 0)
    assert (set(found.missing), found.wanted) == (set(table), (key_of("new"),))


@given(held, st.integers(0, 2**32), st.data())
def test_no_message_calls_for_an_answer_beyond_the_bounds(versions, start, data):
    digits = st.text("0123456789abcdef", max_size=8)
    branches = data.draw(st.lists(st.builds(wire.Branch, digits, st.binary(min_size=16, max_size=16)), max_size=64))
    found = table_of(versions).answer(wire.Compare(tuple(branches)), start)
    assert len(found.compare.branches) <= wire.MAX_BRANCHES
    assert len(found.compare.leaves) <= wire.MAX_LEAVES
    assert decode("control", "a", encode(found.compare)) == found.compare
    assert (found.missing, found.wanted) == ((), ()), "records are for who shows entries"


def test_a_persistent_difference_hides_no_other():
    """A record in the first four branches that its holder may not forward, and a newer record in each of the others."""
    one = {str(each): 0 for each in range(2000)}
    ghosts = [peer for peer in (f"ghost{each}" for each in range(200)) if key_of(peer).hex()[0] in "0123"]
    other = dict.fromkeys(one, 1) | dict.fromkeys(ghosts, 0)
    reached = set()
    for start in range(16):
        found = table_of(one).answer(table_of(other).first_message(differs=True), start)
        reached |= {it.prefix[0] for it in found.compare.branches}
    assert reached == set("0123456789abcdef")


def test_the_digest_covers_the_whole_record():
    one, other = record("a", addresses=("/a",)), record("a", addresses=("/b",))
    assert order_of(one) != order_of(other)
    assert entry_of(one) != entry_of(other)
    assert entry_of(one)[:8] == entry_of(other)[:8] == key_of("a")
