"""Any message of the wire within its bounds: each field is drawn from values that are true, nearly true, old, extreme or another's.

The first candidate of a field is the honest one, so that hypothesis shrinks towards honest messages.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any, Literal, get_args, get_origin, get_type_hints

import hypothesis.strategies as st
import msgspec
import trio

from starling.gossip.exchange.attestation import Attestation, body, claim_of, digest
from starling.gossip.membership.table import Table, entry_of, key_of
from starling.gossip.overlay.ranks import digest as view_of
from starling.gossip.wire import schema as wire
from starling.gossip.wire.schema import Lane, Message
from starling.node.daemon.running import RunningNode
from starling.node.identity import Identity
from starling.node.net.memory_network import address_of
from starling.node.simulate.virtual.swarm import VirtualNode
from starling.robust.evidence import equivocation
from tests.harness.hostile import key

Draw = Callable[[st.SearchStrategy[Any]], Any]
END = 2**62
KINDS: dict[Lane, tuple[type[Message], ...]] = {
    "control": get_args(wire.Control),
    "exchange": get_args(wire.PairwiseMessage) + get_args(wire.PulledMessage),
    "state": get_args(wire.State),
    "crew": get_args(wire.Crew),
}
LANE_OF: dict[type[Message], Lane] = {kind: lane for lane, kinds in KINDS.items() for kind in kinds}
STRANGERS = tuple(key("named", number) for number in range(20))


@dataclass(slots=True)
class Known:
    """What a lying member knows: its key, the members' ids, and the last frames it sent and received."""

    identity: Identity
    swarm: str
    members: tuple[str, ...]
    creator: Identity
    seen: deque[tuple[str, Message]] = field(default_factory=lambda: deque(maxlen=300))  # (the other end, message)

    def of(self, peer: str, *kinds: type[Message]) -> list[Any]:
        """Return messages of some kinds to or from a peer, the newest first."""
        return [message for other, message in reversed(self.seen) if other == peer and isinstance(message, kinds)]


def message(draw: Draw, kind: type[Message], known: Known, victim: VirtualNode) -> Message:
    """Draw a message of that kind for one victim."""
    hints = get_type_hints(kind)
    some = Values(known, victim)
    values = {name: draw(st.sampled_from(some.of(kind, name, hints[name]))) for name in kind.__struct_fields__}
    if kind is wire.Pulled and draw(st.booleans()):
        values["digest"] = digest(values["payload"])
        values["signature"] = some.attested(values["incarnation"], values["round"], values["digest"]).signature
    if kind is wire.Evidence and draw(st.booleans()):
        return some.confession()
    return kind(**values)


def altered_by(field: int, value: int, honest: Message, known: Known, victim: VirtualNode) -> Message:
    """Return an honest message with one changed field; both numbers were drawn before, of any size."""
    names = honest.__struct_fields__
    if not names:
        return honest
    name = names[field % len(names)]
    some = Values(known, victim).of(type(honest), name, get_type_hints(type(honest))[name])
    return msgspec.structs.replace(honest, **{name: some[value % len(some)]})


def signed_anew(honest: wire.Pulled, known: Known) -> wire.Pulled:
    """Return the answer to a pull with the oldest other vector that is known, signed as the member's own of that round."""
    others = (it.payload for _, it in known.seen if isinstance(it, wire.Pulled) and it.payload != honest.payload)
    payload = next(others, honest.payload[::-1])
    what = digest(payload)
    signature = attested(known, honest.incarnation, honest.round, what).signature
    return msgspec.structs.replace(honest, payload=payload, digest=what, signature=signature)


def attested(known: Known, incarnation: int, round: int, what: bytes) -> Attestation:
    """Return the member's signature for a vector with this digest."""
    me = known.identity
    return Attestation(known.swarm, me.peer_id, incarnation, round, what, me.sign(body(known.swarm, me.peer_id, incarnation, round, what)))


@dataclass(slots=True)
class Values:
    """Candidate values of a field, by its name."""

    known: Known
    victim: VirtualNode

    @property
    def running(self) -> RunningNode:
        return self.victim.node.running

    def of(self, kind: type[Message], name: str, hint: Any) -> Sequence[Any]:
        if get_origin(hint) is Literal:
            return get_args(hint)
        return getattr(self, name if name != "known" else "revoked")(kind)

    def _edge(self) -> Any:
        edges = self.running.exchange.edges
        return edges.get(self.known.identity.peer_id) if isinstance(edges, dict) else None

    def _near(self, *honest: int, far: Sequence[int] = (0, 2**40, END)) -> list[int]:
        """Return without repetition the numbers themselves, adjacent ones, and some far away."""
        beside = [at + by for by in (1, 2, -1) for at in honest]
        return list(dict.fromkeys(it for it in (*honest, *beside, *far) if 0 <= it <= END))

    def inc(self, _kind: object) -> list[int]:
        edge = self._edge()
        heard = [it.inc for it in self.known.of(self.victim.peer_id, *get_args(wire.PairwiseMessage))[:3]]
        return self._near(*([edge.inc] if edge is not None else []), *heard, far=(0, 2**60, 2**61, 2**61 + 1, END))

    def seq(self, kind: type[Message]) -> list[int]:
        edge = self._edge()
        if edge is None:
            return self._near(1)
        asked = [it.seq for it in self.known.of(self.victim.peer_id, wire.Request, wire.Response)[:2]]
        ours = (edge.next_seq - 1, edge.committed) if edge.initiator else (edge.last_seen, edge.committed)
        return self._near(*asked, *ours)

    committed = seq

    def copy(self, _kind: object) -> list[int]:
        return [1, 2, 3, 4, 5, 0, END]

    def lost(self, _kind: object) -> list[bool]:
        return [True, False]

    stop = yours = lacks = lost

    def turn(self, kind: object) -> list[int]:
        return self.round(kind)

    def round(self, _kind: object) -> list[int]:
        at = self.victim.node.progress.round
        return self._near(at, far=(at + 8, at + 9, at + 16, at + 17, at + 40, max(0, at - 9), max(0, at - 17), 0, END))

    def view(self, kind: type[Message]) -> list[bytes]:
        members = self.running.membership
        heard = [it.view for it in self.known.of(self.victim.peer_id, kind)[:2]]
        return [*heard, members.view, view_of(members.members), self.running.around.beacons.digest(0), bytes(16)]

    def revoked(self, _kind: object) -> list[bytes]:
        return [self.running.begun.admission.gate.digest, bytes(16)]

    def theta(self, _kind: object) -> list[float]:
        return [0.5, 0.25, 0.75, 1e-9, 1.0, 0.0]

    def borne(self, _kind: object) -> list[float]:
        return [1.0, 0.0, 0.5]

    def share(self, _kind: object) -> list[float]:
        return [1.0, 0.0, 0.5]

    clip = share

    def reference(self, _kind: object) -> list[float]:
        return [*(it.reference for it in self.known.of(self.victim.peer_id, wire.Request)[:1]), 0.0, 1e-9, 1.0, 1e30]

    def gain(self, _kind: object) -> list[float]:
        return [*(it.gain for it in self.known.of(self.victim.peer_id, wire.Request)[:1]), 0.0, 1e-3, 1.0, 1e9]

    def payload(self, kind: type[Message]) -> list[bytes]:
        seen = (it.payload for _, it in reversed(self.known.seen) if isinstance(it, wire.Request | wire.Response | wire.Pulled))
        heard = list(dict.fromkeys(chain((it.payload for it in self.known.of(self.victim.peer_id, kind) if hasattr(it, "payload")), seen)))
        some = heard[:4]
        return [*some, *(it[:-1] for it in some[:1]), *(it[:4] + bytes(len(it) - 4) for it in some[:1]), b""]

    def nonce(self, _kind: object) -> list[int]:
        return list(dict.fromkeys((*self._last("nonce", 4), 0, 1, 2, 3, 5, END)))

    def incarnation(self, _kind: object) -> list[int]:
        own = self._version()[0]
        return self._near(own)

    def digest(self, kind: type[Message]) -> list[bytes]:
        return [digest(self.payload(kind)[0]), bytes(32)]

    def signature(self, _kind: object) -> list[bytes]:
        return [*self._last("signature", 2), bytes(64)]

    def swarm_time(self, _kind: object) -> list[float]:
        now = self.running.membership._core.view.swarm_time(trio.current_time())
        return [now, now + 1.0, now - 1.0, now + 3600.0, 0.0, 1e12, -1e12]

    def peer(self, kind: type[Message]) -> list[str]:
        none = [""] if kind is wire.Acknowledge else []
        return [*none, *self.known.members, STRANGERS[0].peer_id]

    author = peer

    def heard(self, _kind: object) -> list[bytes]:
        return [b"", *self._last("heard", 2), bytes(8)]

    def outer(self, _kind: object) -> list[bytes]:
        given = self.victim.engine.replica.given if self.victim.engine is not None else {}
        return [b"", *list(given)[-2:], bytes(8)]

    def reply(self, _kind: object) -> list[bool]:
        return [True, False]

    reached = reply

    def port(self, _kind: object) -> list[int]:
        return [4001, 1, 65535]

    def seen(self, _kind: object) -> list[str]:
        return ["192.0.2.7", "127.0.0.1", "", "x" * 64]

    def rumors(self, _kind: object) -> list[tuple[wire.Rumor, ...]]:
        me = self.known.identity.peer_id
        out: list[tuple[wire.Rumor, ...]] = [()]
        for source in (me, self.known.members[0]):
            for state in ("suspect", "dead"):
                of_all = tuple(wire.Rumor(peer, *self._version(peer), state, source) for peer in self.known.members if peer != me)
                out += [of_all, *((rumor,) for rumor in of_all)]
        return [*out, *(tuple(msgspec.structs.replace(rumor, version=rumor.version + 1) for rumor in out[1]) for _ in (0,))]

    def record(self, _kind: object) -> list[wire.Record]:
        own, (incarnation, version) = self._signed, self._version()
        newer = [own(incarnation, version + up, "alive") for up in (0, 1, 2)]
        gone = [own(incarnation, version + up, "left") for up in (0, 1)]
        reborn = [own(incarnation + up, 0, "alive") for up in (1, 1000)]
        elsewhere = [own(incarnation, version + 1, "alive", address_of(self.known.members[0])), own(END, END, "alive")]
        return [*newer, *gone, *reborn, *elsewhere, *self._heard()[:2]]

    def records(self, _kind: object) -> list[tuple[wire.Record, ...]]:
        named = tuple(_record(it, self.known.swarm, 1, 0, "alive") for it in STRANGERS)
        left = tuple(_record(it, self.known.swarm, 1, 1, "left") for it in STRANGERS)
        heard = tuple(self._heard())
        forged = tuple(msgspec.structs.replace(it, version=it.version + 1) for it in heard[:1])
        return [(), heard, *((it,) for it in self.record(None)), named[:1], named, left, forged]

    def branches(self, _kind: object) -> list[tuple[wire.Branch, ...]]:
        whole, differing = self._tables
        some = differing.first_message(differs=True).branches
        wrong = tuple(wire.Branch(prefix, bytes(16)) for prefix in ("", "0", "f" * wire.PREFIX_DIGITS))
        return [whole.first_message(differs=False).branches, some, wrong, wrong * 2, ()]

    def leaves(self, _kind: object) -> list[tuple[wire.Leaf, ...]]:
        small = Table([entry_and_peer(it) for it in self._heard()[:1]]).first_message(differs=True).leaves
        return [(), small, (wire.Leaf("", b""),), (wire.Leaf("0", small[0].entries[:-1]),), small * 2]

    def keys(self, _kind: object) -> list[tuple[bytes, ...]]:
        members = tuple(map(key_of, self.known.members))
        return [members, members[:1], (), (bytes(wire.KEY_BYTES),) * wire.MAX_KEYS]

    @property
    def _tables(self) -> tuple[Table, Table]:
        """Return the table of members' records, and one with additional non-existent peers."""
        heard = [entry_and_peer(it) for it in self._heard()]
        more = [entry_and_peer(_record(it, self.known.swarm, 1, 0, "alive")) for it in STRANGERS]
        return Table(heard), Table(heard + more)

    def revocations(self, _kind: object) -> list[tuple[wire.Revocation, ...]]:
        return [(), (wire.Revocation(b"", self.known.identity.peer_id, bytes(64)),)]

    def claims(self, kind: object) -> list[tuple[wire.Claim, ...]]:
        pulled = [(peer, it) for peer, it in reversed(self.known.seen) if isinstance(it, wire.Pulled)][:2]
        heard = tuple(wire.Claim(peer, it.incarnation, it.round, it.digest, it.signature) for peer, it in pulled)
        own = tuple(claim_of(self.attested(self._version()[0], self.round(None)[0], bytes([each]) * 32)) for each in (1, 2))
        return [heard, own[:1], own, tuple(msgspec.structs.replace(it, digest=bytes(32)) for it in heard)]

    def claim(self, kind: object) -> list[wire.Claim]:
        return [each for claims in self.claims(kind) for each in claims]

    def kind(self, _kind: object) -> list[str]:
        return ["equivocation", "gossip", ""]

    def a(self, kind: type[Message]) -> list[bytes]:
        return [msgspec.msgpack.encode(claim) for claims in self.claims(kind) for claim in claims] + [b""]

    b = a

    def epoch(self, _kind: object) -> list[int]:
        return [1, 2, 0, 100, END]

    def swarm(self, _kind: object) -> list[str]:
        return [self.known.swarm, ""]

    def manifest(self, _kind: object) -> list[bytes]:
        return [b"", bytes(100)]

    def snapshot(self, _kind: object) -> list[int]:
        return [*self._last("snapshot", 2), 0, 1, END]

    def offset(self, _kind: object) -> list[int]:
        return [0, 1, 1 << 20, END]

    def size(self, _kind: object) -> list[int]:
        return [*self._last("size", 1), 0, 1, 1 << 20, END]

    def schema(self, _kind: object) -> list[bytes]:
        return [self.running.opened.schema, b""]

    def data(self, _kind: object) -> list[bytes]:
        return [b"", bytes(100)]

    def crew(self, _kind: object) -> list[bytes]:
        return [*self._last("crew", 1), bytes(8)]

    def step(self, kind: object) -> list[int]:
        return [*self._last("step", 2), *self.round(kind)]

    def left(self, _kind: object) -> list[int]:
        return [1, 0, 20, END]

    safe = left

    def evaluate(self, _kind: object) -> list[bool]:
        return [False, True]

    fine = again = answers = evaluate

    def points(self, _kind: object) -> list[tuple[int, ...]]:
        return [(), (0,), (0, 20), (END, END)]

    copies = points

    def batches(self, _kind: object) -> list[int]:
        return [0, 1, 1 << 20]

    samples = micro = batches

    def stage(self, _kind: object) -> list[int]:
        return [0, 1, 2, 15]

    def waits(self, kind: object) -> list[tuple[wire.Waits, ...]]:
        waits = tuple(
            wire.Waits(stage, turn, step, done) for stage, turn, step, done in product((0, 15), self.turn(kind)[:2], (0, END), (0, 2 << 20))
        )
        return [(), waits[:1], waits]

    def freed(self, _kind: object) -> list[tuple[int, ...]]:
        return [(), (0,), (1, 2), tuple(range(16))]

    def heard_at(self, _kind: object) -> list[int]:
        return [0, 1, END]

    def said(self, _kind: object) -> list[tuple[wire.Said, ...]]:
        ready = wire.Ready(bytes(8), 1, 0, 0, 1, False)
        return [(), (wire.Said(0, ready),), tuple(wire.Said(stage, ready) for stage in range(16))]

    def labels(self, _kind: object) -> list[bytes]:
        return [b"", bytes(100)]

    def squares(self, _kind: object) -> list[float]:
        return [0.0, 1.0, 1e300]

    loss = value = squares

    def attested(self, incarnation: int, round: int, what: bytes) -> Attestation:
        return attested(self.known, incarnation, round, what)

    def confession(self) -> wire.Evidence:
        incarnation, at = self._version()[0], self.round(None)[0]
        return equivocation(*(self.attested(incarnation, at, bytes([each]) * 32) for each in (1, 2)))

    def _last(self, name: str, count: int) -> list[Any]:
        """Return the last values of a field in anything sent or received."""
        return [getattr(it, name) for _, it in reversed(self.known.seen) if hasattr(it, name)][:count]

    def _version(self, peer: str = "") -> tuple[int, int]:
        """Return (incarnation, version) under which the victim knows a peer, by default the liar."""
        member = self.running.membership.table.get(peer or self.known.identity.peer_id)
        return (member.record.incarnation, member.record.version) if member is not None else (1, 0)

    def _heard(self) -> list[wire.Record]:
        table = self.running.membership.table
        return [table[peer].record for peer in self.known.members if peer in table and peer != self.known.identity.peer_id]

    def _signed(self, incarnation: int, version: int, status: str, *addresses: str) -> wire.Record:
        return _record(self.known.identity, self.known.swarm, min(incarnation, END), min(version, END), status, *addresses)


def entry_and_peer(record: wire.Record) -> tuple[bytes, str]:
    return entry_of(record), record.peer


def _record(identity: Identity, swarm: str, incarnation: int, version: int, status: str, *addresses: str) -> wire.Record:
    at = addresses or (address_of(identity.peer_id),)
    return identity.sign_record(wire.Record(identity.peer_id, swarm, incarnation, version, status, at, b"", b""))
