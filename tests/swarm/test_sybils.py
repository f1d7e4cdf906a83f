"""Sybils, identities that cost nothing: admission refuses them, and where they are admitted they are rarely drawn.

Whole nodes over a network in memory, in virtual time; Sybils are light, since an attacker with hundreds would not train each.
"""

from collections import Counter

import msgspec
import pytest
import trio

from starling.gossip.errors import PeerUnreachable
from starling.gossip.seeds import derive
from starling.gossip.wire.frames import decode, encode
from starling.gossip.wire.schema import Acknowledge, Hello, Probe, Record, Solicit, Spread, StateOffer, StateQuery, Sync
from starling.node.admission.chain import bind, invite, terms_of
from starling.node.config.schema import AdmissionSection
from starling.node.daemon.membership.neighbors import Caps, RandomNeighbors, secret_draws
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.node.identity import Identity
from starling.node.net.memory import MemoryHub
from starling.node.net.memory_network import address_of
from starling.node.simulate.virtual.swarm import EPOCH_S
from starling.robust.sampling import draw
from tests.harness.admission_swarm import Node as Member
from tests.harness.admission_swarm import Swarm as Members
from tests.harness.stories import virtual
from tests.harness.swarms import agree, digits, rounds_done, story, until

K = 6


def addresses(honest, sybils):
    """Return honest peers all over the internet and ten times as many Sybils in one /24."""
    places = {f"honest{n}": {f"9.{n}.9.0/24"} for n in range(honest)}
    return places | {f"sybil{n}": {"8.8.8.0/24"} for n in range(sybils)}


@pytest.mark.parametrize("per_prefix", [1, 2])
def test_sybils_of_one_prefix_are_never_the_majority_of_drawn_peers(per_prefix):
    places = addresses(10, 100)
    peers = sorted(places)
    shares = [sum(peer.startswith("sybil") for peer in draw(peers, K, places, per_prefix, seed)) for seed in range(500)]
    assert max(shares) <= per_prefix < K / 2
    uncapped = [sum(peer.startswith("sybil") for peer in draw(peers, K, places, 0, seed)) for seed in range(500)]
    assert sum(share > K / 2 for share in uncapped) > 490


class Sybil:
    """One of many identities of an attacker: sends Hello, answers probes, and forwards the records of the others."""

    def __init__(self, hub: MemoryHub, swarm: str, seed: int, credential: bytes = b"") -> None:
        self.identity = Identity.from_seed(derive(seed, "sybil").to_bytes(32, "big"))
        self.peer = self.identity.peer_id
        record = Record(self.peer, swarm, 1, 0, "alive", (address_of(self.peer),), b"", credential)
        self.record = self.identity.sign_record(record)
        self.network = hub.join(self.peer)
        self.learned: set[str] = set()
        self.offered: list[StateOffer] = []

    async def attack(self, victims: list[str], army: tuple[Record, ...]) -> None:
        """Report the whole army to the victims repeatedly, and answer whatever keeps it a member."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer)
            nursery.start_soon(self._listen)
            for _ in range(10):
                for victim in victims:
                    await self._say(victim, "control", Hello(self.record, b"other-digest", 0.0))
                    await self._say(victim, "control", Spread(army))
                    await self._say(victim, "control", Sync(army))
                    await self._say(victim, "exchange", Solicit(1, 0, b"other-digest"))
                    await self._say(victim, "state", StateQuery(1))
                await trio.sleep(1.0)

    async def _say(self, victim, lane, message):
        try:
            await self.network.dial(address_of(victim))
            await self.network.send(victim, lane, encode(message))
        except PeerUnreachable:
            return

    async def _answer(self):
        async for inbound in self.network.inbound("control"):
            message = decode("control", inbound.peer, inbound.frame)
            if isinstance(message, Probe):
                await self._say(inbound.peer, "control", Acknowledge(message.nonce, b"other-digest", 0.0))
            elif isinstance(message, Sync | Spread):
                self.learned |= {record.peer for record in message.records}

    async def _listen(self):
        async for inbound in self.network.inbound("state"):
            message = decode("state", inbound.peer, inbound.frame)
            if isinstance(message, StateOffer):
                self.offered.append(message)


@pytest.mark.slow
@pytest.mark.trio
async def test_a_victim_among_many_sybils_has_a_majority_of_honest_neighbors(autojump_clock):
    swarm = Members(AdmissionSection(per_prefix=1))
    async with swarm.running((), (), (), (), ()):
        honest = {node.peer for node in swarm.nodes}
        for at, peer in enumerate(sorted(honest)):
            swarm.hub.origins[peer] = f"9.{at}.9.0/24"
        victim: Member = swarm.nodes[0]
        army = [Sybil(swarm.hub, swarm.id, seed) for seed in range(10 * len(honest))]
        for sybil in army:
            swarm.hub.origins[sybil.peer] = "8.8.8.0/24"
            swarm.nursery.start_soon(sybil.attack, [victim.peer], (sybil.record,))
        members = victim.membership
        await until(lambda: len(members.members) > 8 * len(honest), 20.0)
        for per_prefix, fewest, most in ((1, 1.0, 1.0), (0, 0.0, 0.1)):
            chosen = RandomNeighbors(
                lambda: members.members,
                victim.peer,
                K,
                Caps(per_prefix, members.origins.prefixes),
                lambda _peer: True,
                secret_draws(bytes(32), 1),
            )
            rounds = [set(chosen.weights(number)) - {victim.peer} for number in range(200)]
            majorities = sum(len(peers & honest) > len(peers) / 2 for peers in rounds) / len(rounds)
            assert fewest <= majorities <= most, "the cap is what helps"


def invited(swarm, nodes):
    """Let the creator invite each node by its own bearer key."""
    terms = terms_of(swarm.manifest, swarm.swarm)
    for index in range(1, nodes):
        bearer = bytes([index]) * 32
        chain = invite(
            swarm.identity(0), (), terms, invitee=Identity.from_seed(bearer).peer_id, number=index, not_after_ms=int((EPOCH_S + 1e6) * 1000)
        )
        swarm.chains[index] = bind(chain, bearer, swarm.identity(index).peer_id, swarm.swarm)


@virtual(1)
@pytest.mark.parametrize("kind", ["invite", pytest.param("allow", marks=pytest.mark.acceptance), "open"])
async def test_sybils_without_credentials_are_not_admitted_to_a_training_swarm(kind):
    nodes = 3
    agreed = digits(nodes, rounds=25)
    admission = {
        "invite": AdmissionSection(kind="invite"),
        "allow": AdmissionSection(kind="allow", members=tuple(story(agreed, 1).identity(index).peer_id for index in range(nodes))),
        "open": AdmissionSection(bits=4, memory_kib=8),
    }[kind]
    swarm = story(msgspec.structs.replace(agreed, admission=admission), 1)
    invited(swarm, nodes)
    army = [Sybil(swarm.hub, swarm.swarm, seed) for seed in range(10)]
    async with swarm.running(nodes), trio.open_nursery() as nursery:
        victims = [swarm.nodes[index].peer_id for index in (0, 1)]
        for sybil in army:
            nursery.start_soon(sybil.attack, victims, tuple(other.record for other in army))
        await until(lambda: rounds_done(swarm, 20))
        assert agree(swarm)
        names = {sybil.peer for sybil in army}
        for virtual_node in swarm.nodes.values():
            assert not names & set(virtual_node.node.running.membership.table)
            assert set(virtual_node.node.events.faults) <= names
        for sybil in army:
            assert sybil.learned == set()
            assert not any(offer.size for offer in sybil.offered)
        told = Counter(reason for index in (0, 1) for faults in swarm.nodes[index].node.events.faults.values() for reason in faults)
        assert told["not_listed" if kind == "allow" else "credential_missing"] >= len(army)
        inviters = {row.inviter for row in take_snapshot(swarm.nodes[1].node).peers if row.peer != swarm.nodes[0].peer_id}
        assert inviters == {swarm.nodes[0].peer_id if kind == "invite" else ""}
        await swarm.finished()
        assert all(virtual_node.node.progress.evaluated.value > 0.8 for virtual_node in swarm.nodes.values())
        nursery.cancel_scope.cancel()
