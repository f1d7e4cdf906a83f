"""The exchanges, neighbors and round loop of sampled rounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starling.node.daemon.exchange.pull_service import Signing
from starling.node.daemon.membership.neighbors import AliveMembers, LinkMap, own_links
from starling.node.daemon.training.paces import Pace, Services
from starling.node.daemon.trust.equivocation import EquivocationDetector
from starling.node.extras.sampled.exchange import Orders, SampledExchange
from starling.node.extras.sampled.loop import SampledLoop
from starling.node.rpc import calls


@dataclass(frozen=True, slots=True)
class SampledNeighbors:
    """The peers that a node pulled last, since the members of a round are a sample."""

    members: AliveMembers
    me: str
    requested: Callable[[], tuple[str, ...]]

    def weights(self, round: int) -> Mapping[str, float]:
        """Return neighbor -> mixing weight, the same for all."""
        requested = self.requested()
        return dict.fromkeys(requested, 1.0 / len(requested)) if requested else {}

    def link_map(self, round: int) -> LinkMap:
        """Links of this node alone, since those of others are unknown."""
        return own_links(sorted(self.members()), self.me, self.requested())


class FromCheckpoint:
    """Start from the checkpoint: a sampled node takes the newest model anyway."""

    async def start(self, opened: calls.Opened) -> int:
        """Return the checkpoint's round."""
        return opened.round


def sampled(services: Services) -> Pace:
    """Return rounds of a sample of the members."""
    context, members = services.context, services.around.membership
    equivocation = EquivocationDetector(context, members, lambda: exchange.turn)
    exchange = SampledExchange(
        context,
        members,
        Signing(services.fresh(1), equivocation.attested),
        services.around.policy.noted,
        services.subscribers,
        Orders(services.around.beacons.salt, services.around.may_use, lambda peer: peer in members.table),
    )
    neighbors = SampledNeighbors(lambda: members.roster, context.me, lambda: exchange.edges)
    loop = SampledLoop(context.manifest.pace, exchange, services.grants(), services.house)
    return Pace(exchange, neighbors, FromCheckpoint(), loop, equivocation)
