"""Proof of work: expensive to find, cheap to check, valid for one peer, one swarm and one epoch."""

import hashlib
from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.node.admission.credential import Ticket
from starling.node.admission.work import Puzzle, search
from starling.node.config import manifest as manifests
from starling.node.config.schema import AdmissionSection, Manifest
from starling.node.identity import Identity
from tests.strategies import examples

PUZZLE = Puzzle("s" + "a" * 32, bits=4, memory_kib=8, epoch_s=3600.0)
PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


class Quick(Puzzle):
    """Stands in for the hash: counts evaluations of a cheap function with the same statistics."""

    evaluations = 0

    def digest(self, peer, ticket):
        Quick.evaluations += 1
        return hashlib.blake2b(f"{peer} {ticket.epoch} {ticket.nonce}".encode(), digest_size=32).digest()


def evaluations(function):
    before = Quick.evaluations
    result = function()
    return result, Quick.evaluations - before


def quick(bits):
    return Quick(PUZZLE.swarm, bits, PUZZLE.memory_kib, PUZZLE.epoch_s)


@pytest.mark.parametrize("bits", [1, 3, 6, 10])
def test_a_search_costs_two_to_the_bits_on_average_and_a_check_one_evaluation(bits):
    puzzle, searches = quick(bits), 64 if bits > 6 else 200
    tickets, finding = evaluations(lambda: [search(puzzle, PEER, epoch, range(100_000)) for epoch in range(searches)])
    _, checking = evaluations(lambda: [puzzle.is_solved(PEER, ticket) for ticket in tickets])
    assert checking == searches
    assert finding / searches == pytest.approx(2**bits, rel=0.4)
    assert mean(ticket.nonce + 1 for ticket in tickets) == finding / searches


def test_a_ticket_is_valid_for_its_peer_epoch_swarm_and_difficulty_only():
    ticket = search(PUZZLE, PEER, 7, range(10_000))
    assert PUZZLE.is_solved(PEER, ticket)
    others = [Identity.from_seed(bytes([n]) * 32).peer_id for n in range(8)]
    uses = [
        *(PUZZLE.is_solved(other, ticket) for other in others),
        *(PUZZLE.is_solved(PEER, Ticket(epoch, ticket.nonce)) for epoch in range(8, 16)),
        *(replace(PUZZLE, swarm=f"s{n}").is_solved(PEER, ticket) for n in range(8)),
        replace(PUZZLE, memory_kib=16).is_solved(PEER, ticket),
    ]
    assert sum(uses) <= 6


def test_the_digest_is_golden():
    assert PUZZLE.digest(PEER, Ticket(1, 2)).hex() == "714dfe9a3c428e38b885c6aa34ee6096c583b50458eef6c35875d31338d87f99"


@given(st.integers(0, 30), st.binary(min_size=32, max_size=32))
@examples(60)
def test_leading_zero_bits_are_counted(bits, raw):
    number = int.from_bytes(raw, "big") >> bits
    digest = number.to_bytes(32, "big")
    assert all(replace(PUZZLE, bits=fewer).solved_by(digest) for fewer in range(1, min(bits, 24) + 1))
    assert replace(PUZZLE, bits=24).solved_by(digest) == (digest[:3] == bytes(3))


@given(epoch=st.integers(0, 10**6), at=st.floats(-3.0, 3.0))
@examples(60)
def test_a_ticket_is_valid_until_the_middle_of_the_next_epoch(epoch, at):
    now = (epoch + at) * PUZZLE.epoch_s
    if abs(at + 0.5) > 1e-6 and abs(at - 1.5) > 1e-6:
        assert PUZZLE.is_current(Ticket(epoch, 0), now) == (-0.5 <= at < 1.5)
    moment = (epoch + 0.25) * PUZZLE.epoch_s
    assert PUZZLE.is_current(Ticket(PUZZLE.epoch(moment), 0), moment)


def test_a_search_tries_the_nonces_given_and_no_others():
    assert evaluations(lambda: search(quick(24), PEER, 0, range(50, 90))) == (None, 40)


def check(section):
    return manifests.check(Manifest(admission=section))


def test_a_manifest_whose_work_would_expire_too_soon_is_refused_with_a_remedy():
    with pytest.raises(ConfigError, match=r"admission\.bits: 24 bits of 65536 KiB") as error:
        check(AdmissionSection(bits=24, memory_kib=65536))
    bits = int(str(error.value).rpartition("admission.bits=")[2].rstrip("`"))
    assert check(AdmissionSection(bits=bits, memory_kib=65536))[0].endswith("min an epoch")
    with pytest.raises(ConfigError):
        check(AdmissionSection(bits=bits + 1, memory_kib=65536))


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (AdmissionSection(kind="allow", members=("nobody",)), "admission.members: must be peer ids, got 'nobody'"),
        (AdmissionSection(kind="allow", members=("",)), "admission.members: must be peer ids"),
    ],
)
def test_a_list_of_members_must_have_peer_ids(section, says):
    with pytest.raises(ConfigError, match=says):
        check(section)


def test_short_work_is_not_reported():
    for section in (AdmissionSection(), AdmissionSection(bits=10), AdmissionSection(kind="invite")):
        assert check(section) == []
