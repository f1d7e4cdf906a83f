"""Members to ask for a model: each once, in random order, those next to each other with little in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import trio

from starling.gossip.seeds import derive
from starling.node.daemon.context import NodeContext
from starling.node.daemon.membership.neighbors import Members
from starling.node.daemon.membership.service import Membership
from starling.node.daemon.state.collecting import ASKED

COMPARED = 64  # members among which those with little in common are searched
LOOK_S = 0.05  # seconds between two looks whether a member has come


@dataclass(frozen=True, slots=True)
class Sources:
    """The members that a node may ask."""

    context: NodeContext
    membership: Membership
    members: Members
    """Those with a model like ours."""
    allows: Callable[[str], bool]
    may_meet_more: Callable[[], bool]
    """Returns whether further members may be met soon."""

    def begin(self) -> Asking:
        """Return who is to be asked in one fetch."""
        return Asking(self, int(self.context.unix_time() * 1e6))


@dataclass(frozen=True, slots=True)
class Asking:
    """One fetch from members; `moment` makes the order one that no peer can arrange to be first in."""

    sources: Sources
    moment: int
    _named: set[str] = field(default_factory=set)

    def now(self) -> list[str]:
        """Return the members that were not returned before, in the order in which to ask them."""
        of, me = self.sources, self.sources.context.me
        found = [peer for peer in of.members.members if peer != me and peer not in self._named and of.allows(peer)]
        self._named.update(found)
        found.sort(key=lambda peer: derive(self.moment, "source", me, peer))
        origins = of.membership.origins
        return disjoint(found, lambda peer: {*origins.prefixes(peer), *origins.inviters_of(peer)[-1:]})

    async def further(self) -> list[str]:
        """Wait for further members while some may be met soon -> as `now`."""
        while not (found := self.now()) and self.sources.may_meet_more():  # noqa: ASYNC110 — members also come by reports
            await trio.sleep(LOOK_S)
        return found


def disjoint(peers: Sequence[str], traits: Callable[[str], Collection[str]]) -> list[str]:
    """Reorder peers so that each group of `ASKED` has as little in common as possible; the order given breaks ties.

    `traits` of a peer: its address prefix, operator and inviter.
    """
    left, rest, order = list(peers[:COMPARED]), peers[COMPARED:], list[str]()
    known = {peer: traits(peer) for peer in left}
    shared: Counter[str] = Counter()
    while left:
        if len(order) % ASKED == 0:
            shared.clear()
        chosen = min(left, key=lambda peer: sum(shared[trait] for trait in known[peer]))
        left.remove(chosen)
        order.append(chosen)
        shared.update(known[chosen])
    return [*order, *rest]
