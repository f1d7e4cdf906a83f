"""Beacons: who signs them, how they are stored and forwarded, and the effect on ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import RemoteProtocolError
from starling.gossip.overlay.beacon import AHEAD, Beacons, body, signed, value
from starling.gossip.overlay.ranks import epoch_of, order_digest, ranked, ranked_at, salt_of
from starling.gossip.wire.schema import Beacon
from starling.node.identity import Identity, verify

SWARM = "s" + "a" * 32
SALT = SWARM.encode()
CREATOR = Identity.from_seed(b"creator of a swarm with beacons.")
OTHER = Identity.from_seed(b"somebody who would like to sign.")
PEERS = [f"peer{i:02}" for i in range(16)]


def beacon(epoch, swarm=SWARM, identity=CREATOR):
    return signed(swarm, epoch, identity.sign)


def store(*epochs, limit=8):
    beacons = Beacons(SWARM, CREATOR.peer_id, verify, limit)
    for epoch in epochs:
        assert beacons.take("x", beacon(epoch), epoch)
    return beacons


def test_a_beacon_is_forwarded_once_and_gives_all_nodes_the_same_salt():
    one, other = store(1), store(1, 2)
    assert not one.take("x", beacon(1), 1)
    assert one.salt(SALT, 1) == other.salt(SALT, 1) == salt_of(SALT, 1, value(beacon(1)))
    assert one.salt(SALT, 2) != other.salt(SALT, 2)


def test_without_a_beacon_the_salt_is_the_default_one():
    beacons = store(3)
    for epoch in (0, 1, 2, 4):
        assert ranked(PEERS, beacons.salt(SALT, epoch)) == ranked_at(PEERS, SALT, epoch * 4, 4)
    assert ranked(PEERS, beacons.salt(SALT, 3)) != ranked_at(PEERS, SALT, 12, 4)


def test_an_epoch_without_a_signed_beacon_uses_the_swarms_salt():
    assert store().salt(SALT, 0) == SALT
    assert not store().wants(beacon(0), 0)


@pytest.mark.parametrize(
    "forged",
    [beacon(2, identity=OTHER), beacon(2, swarm="s" + "b" * 32), Beacon(2, beacon(1).signature), Beacon(2, bytes(64))],
    ids=["another's", "another swarm's", "another epoch's", "nobody's"],
)
@pytest.mark.parametrize("known", [(), (2,)])
def test_a_beacon_not_signed_by_the_creator_is_the_sender_s_fault(forged, known):
    beacons = store(*known)
    before = repr(beacons)
    with pytest.raises(RemoteProtocolError, match="beacon_forged") as caught:
        beacons.take("byzantine", forged, 1)
    assert caught.value.peer == "byzantine"
    assert repr(beacons) == before


def test_beacons_of_far_epochs_are_not_verified():
    beacons = store(1)
    assert beacons.take("x", beacon(4 + AHEAD), 4)
    assert not beacons.wants(beacon(5 + AHEAD), 4)
    assert not beacons.take("x", Beacon(5 + AHEAD, bytes(64)), 4)
    assert 5 + AHEAD not in beacons


def test_the_creator_s_first_signature_is_kept():
    """Ed25519 lets a signer choose among signatures: it can split a swarm for one epoch, but not change an order repeatedly."""
    beacons = Beacons(SWARM, CREATOR.peer_id, lambda _peer, _signature, _message: True)
    assert beacons.take("x", Beacon(1, bytes(64)), 0)
    assert not beacons.take("x", Beacon(1, b"\1" * 64), 0)
    assert beacons.since(1) == (Beacon(1, bytes(64)),)


@given(epochs=st.lists(st.integers(1, 40), max_size=60))
def test_a_bounded_number_of_newest_epochs_is_stored(epochs):
    beacons = Beacons(SWARM, CREATOR.peer_id, lambda _peer, _signature, _message: True, limit=5)
    for epoch in epochs:
        beacons.take("x", Beacon(epoch, bytes(64)), 40)
    assert {epoch for epoch in range(50) if epoch in beacons} == set(sorted(set(epochs))[-5:])


def test_a_query_gets_the_known_beacons_from_its_epoch_on():
    beacons = store(2, 3, 5, 6)
    assert [it.epoch for it in beacons.since(3)] == [3, 5]
    assert beacons.since(7) == ()


def test_a_store_smaller_than_its_window_is_refused():
    with pytest.raises(ValueError, match="limit must be > 2, got 2"):
        Beacons(SWARM, CREATOR.peer_id, verify, limit=2)


def test_a_beacon_is_valid_for_one_swarm_and_epoch_only():
    assert body(SWARM, 7).startswith(b"starling/beacon/1\0")
    assert len({body(SWARM, 7), body(SWARM, 8), body("s", 7)}) == 3
    assert body("s", 1) == b"starling/beacon/1\0\x92\xa1s\x01"
    assert value(Beacon(1, bytes(64))).hex() == "0eb923b0cbd24df54401d998531feead35a47a99f4deed205de4af81120f9761"
    assert salt_of(b"salt", 1, bytes(32)).hex() == "2597820fe6bc035b50b6d44efa521287"


def test_a_different_order_of_ranks_changes_the_view_digest():
    views = {order_digest(members, salt) for members in (bytes(16), b"\1" * 16) for salt in (SALT, store(1).salt(SALT, 1))}
    assert len(views) == 4
    assert all(len(view) == 16 for view in views)


def test_epochs_are_counted_in_rounds_of_one_order():
    assert [epoch_of(at, 4) for at in (0, 3, 4, 11)] == [0, 0, 1, 2]
    assert epoch_of(1000, 0) == 0


def test_ids_searched_without_the_beacon_get_random_ranks():
    beside = foreseen = 0
    beacons = store(*range(1, 9), limit=64)
    for epoch in range(1, 9):
        guess = next(name for number in range(2000) if _behind(name := f"ground{number}", "peer00", salt_of(SALT, epoch)))
        foreseen += _behind(guess, "peer00", salt_of(SALT, epoch))
        beside += _behind(guess, "peer00", beacons.salt(SALT, epoch))
    assert foreseen == 8
    assert beside <= 3  # each with probability 1/17


def _behind(name, victim, salt):
    order = ranked([*PEERS, name], salt)
    return order[(order.index(victim) + 1) % len(order)] == name
