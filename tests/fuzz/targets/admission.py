"""Credentials and revocations from peers: refused with one word, accepted only if signed by all peers they name."""

from collections.abc import Iterator

import msgpack

from starling.gossip.wire.schema import MAX_CREDENTIAL_BYTES, Record, Revocation
from starling.node.admission import chain as chains
from starling.node.admission import credential as credentials
from starling.node.admission import revocations
from starling.node.admission.chain import Terms, bind, invite
from starling.node.admission.credential import Credential, Ticket
from starling.node.admission.gate import GOOD, Gatekeeper
from starling.node.config.schema import AdmissionSection, Manifest
from starling.node.identity import Identity
from tests.fuzz.plain import MSGPACK_LURES, value
from tests.fuzz.target import Choices, Target, prefixed, reason_of
from tests.harness.texts import words

SWARM = "s" + "a" * 32
CREATOR, MEMBER, OTHER = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3))
TERMS = Terms(SWARM, CREATOR.peer_id, 3, 3)
BEARER = bytes([9]) * 32
CHAIN = bind(
    invite(CREATOR, (), TERMS, invitee=Identity.from_seed(BEARER).peer_id, number=0, not_after_ms=2**50), BEARER, MEMBER.peer_id, SWARM
)
BELOW = invite(MEMBER, CHAIN, TERMS, invitee=OTHER.peer_id, number=1, not_after_ms=2**50)
KINDS = (
    AdmissionSection(kind="invite", depth=3, quota=3),
    AdmissionSection(bits=1, memory_kib=8),
    AdmissionSection(),
    AdmissionSection(kind="allow"),
)
REASONS = {
    *words(
        "credential_malformed credential_missing chain_malformed chain_empty chain_too_deep chain_beyond_depth chain_beyond_quota",
        "chain_signature chain_binding chain_loop chain_of_another not_listed work_forged revoked_by_another revocation_forged",
        "nothing_to_revoke",
    )
}


def _gate(kind: AdmissionSection) -> Gatekeeper:
    return Gatekeeper(Manifest(founder=CREATOR.peer_id, admission=kind), SWARM, CREATOR.peer_id, lambda: 1_700_000_000.0)


def _credential(data: bytes) -> bool:
    """First byte: kind of admission, and whose record it is; from 128 on the rest are choices instead of the credential."""
    setting, raw = (data[0] if data else 0), data[1:]
    if setting >= 128:
        raw = msgpack.packb(value(Choices(raw), 4), use_bin_type=True)
    raw = raw[:MAX_CREDENTIAL_BYTES]
    gate, who = _gate(KINDS[setting % 4]), (MEMBER, OTHER)[setting // 4 % 2]
    record = Record(who.peer_id, SWARM, 1, 1, "alive", (), b"", raw)
    fault = gate.fault(record)
    if fault:
        assert fault in REASONS
        assert not gate.admits(record)
        return False
    credential = gate.credential(record)
    assert credentials.encode(credential) == raw, "one credential has one encoding"
    assert len(credential.operator) <= 64
    assert credential.operator.isprintable()
    if gate.admits(record) and setting % 4 == 0:
        assert credential.chain in {CHAIN, BELOW}, "no other chain was signed"
        assert gate.standing(record) == GOOD
    return True


def _credentials() -> list[bytes]:
    return [
        b"\x00" + credentials.encode(Credential("me", None, CHAIN)),
        b"\x04" + credentials.encode(Credential("", None, BELOW)),
        b"\x01" + credentials.encode(Credential("", Ticket(78703, 1))),
        b"\x02",
    ]


def _lures() -> list[bytes]:
    fields = (
        ["", None, []],
        ["\n", None, []],
        ["", [2**63, 0], []],
        ["", [0], []],
        ["x" * 65, None, []],
        [b"", None, []],
        ["", None, [[]]],
    )
    packed = prefixed(b"\x02", *map(msgpack.packb, fields))
    return packed + prefixed(b"\x00", *(lure[:MAX_CREDENTIAL_BYTES] for lure in MSGPACK_LURES))


CREDENTIAL = Target(_credential, _credentials, _lures, most_bytes=2200, reach=25)


def _revocation(data: bytes) -> bool:
    """First byte: the alleged signer; then 64 bytes of signature, then the chain."""
    setting, signature, raw = (data[0] if data else 0), data[1:65], data[65:]
    gate = _gate(KINDS[0])
    revocation = Revocation(raw[:MAX_CREDENTIAL_BYTES], (CREATOR, MEMBER, OTHER)[setting % 3].peer_id, signature)
    try:
        new = gate.revoke([revocation])
    except ValueError as error:
        reason_of(error, REASONS)
        assert gate.revoked == ()
        return False
    assert new == [revocation]
    assert chains.from_bytes(revocation.chain) in {CHAIN, BELOW}, "no other chain was signed"
    return True


def _revocations() -> Iterator[bytes]:
    for setting, (who, chain) in enumerate(((CREATOR, CHAIN), (MEMBER, BELOW))):
        good = revocations.revoke(who, chain, TERMS)
        yield bytes([setting]) + good.signature + good.chain


REVOCATION = Target(_revocation, _revocations, most_bytes=2200, reach=20)
