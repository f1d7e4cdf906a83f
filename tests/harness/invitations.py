"""Identities, and chains of invitations between them."""

from starling.node.admission.chain import MAX_LINKS, Terms, bind, invite
from starling.node.identity import Identity

SWARM = "s" + "a" * 32


PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(12)]


BEARERS = [bytes([100 + number]) * 32 for number in range(12)]


CREATOR = PEOPLE[0]


TERMS = Terms(SWARM, CREATOR.peer_id, depth=3, quota=3)


END_MS = 2_000_000_000_000


def one_more(above, inviter, to, *, terms=TERMS, number=0, bearer=True, until=END_MS, quota=None):
    """Return the chain of people[to], extended by an invitation of `inviter`."""
    invitee = Identity.from_seed(BEARERS[to]).peer_id if bearer else PEOPLE[to].peer_id
    chain = invite(inviter, above, terms, invitee=invitee, number=number, not_after_ms=until, quota=quota)
    return bind(chain, BEARERS[to], PEOPLE[to].peer_id, terms.swarm) if bearer else chain


def chain_of(length, *, terms=TERMS, bearers=(True,) * MAX_LINKS):
    """Return the chain in which people[0] creates and invites people[1], who invites people[2], …"""
    chain = ()
    for to in range(1, length + 1):
        chain = one_more(chain, PEOPLE[to - 1], to, terms=terms, bearer=bearers[to - 1])
    return chain
