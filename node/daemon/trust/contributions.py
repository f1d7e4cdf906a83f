"""Delete peers' contributions to the correction once they are gone, banned or restarted."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import trio

RECONCILED_S = 5.0  # seconds between comparisons of the edges with the members, which catch what no event reported


@dataclass(slots=True)
class Contributions:
    """Counts what one node's peers contribute.

    Args:
        revoke: deletes that of a peer.
        edges: gives the peers that there is an edge to.
        present: whether a peer is a member that is here.
    """

    revoke: Callable[[str], Awaitable[None]]
    edges: Callable[[], Collection[str]]
    present: Callable[[str], bool]
    _cut: dict[str, None] = field(default_factory=dict)  # in order
    _added: trio.Event = field(default_factory=trio.Event)

    def cut(self, peer: str) -> None:
        """Schedule the deletion of what a peer contributed."""
        self._cut[peer] = None
        self._added.set()

    async def serve(self) -> None:
        """Delete scheduled contributions, and those of unknown peers, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                with trio.move_on_after(RECONCILED_S):
                    await self._added.wait()
                self._added = trio.Event()
                self._cut.update(dict.fromkeys(peer for peer in self.edges() if not self.present(peer)))
                for peer in self._cut:
                    nursery.start_soon(self.revoke, peer)
                self._cut.clear()
