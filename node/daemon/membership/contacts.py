"""Keep in touch with the swarm through bootstrap peers: greet those that are not members, again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import trio

from starling.gossip.errors import PeerUnreachable
from starling.gossip.seeds import derive
from starling.node.daemon.context import NodeContext

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # between greetings
SILENT_GREETINGS = 4  # unanswered greetings in a row, over at least seven seconds
SILENT = (
    "the bootstrap peers take our connections and answer nothing: they have banned this node, or another node runs with its identity.key; "
    "stop that one with `starling leave`"
)
Opens = Callable[[str], Awaitable[bool]]
"""Returns whether a peer that is silent as a member answers like one whose engine is still opening."""


class Hint(Protocol):
    """Callback of whoever found an address, which nobody gave."""

    def __call__(self, address: str, *, reached: bool) -> bool:
        """Record whether an address was reached -> whether to keep it."""


class Greeting(Protocol):
    """The membership operations that greeting bootstrap peers needs."""

    @property
    def members(self) -> tuple[str, ...]:
        """Return the peers believed alive, this node included."""

    def greet(self, peer: str, *, given: bool) -> None:
        """Send Hello to a peer that has been dialled; `given`: its owner named the peer."""

    def begin_anew(self) -> None:
        """Take a new incarnation, so that a node with our identity hears of it and reports itself."""


@dataclass(slots=True)
class Contacts:
    """Keeps one node in touch with its bootstrap peers.

    Attributes:
        ignored: they let us connect and say nothing.
    """

    context: NodeContext
    membership: Greeting
    ignored: bool = False
    _open: set[str] = field(default_factory=set)  # addresses to begin with of which no dial has failed
    _seed: int = field(init=False)

    def __post_init__(self) -> None:
        self._seed = derive(self.context.manifest.seed, "join", self.context.identity.peer_id)

    @property
    def expects_answers(self) -> bool:
        """Return whether an address to begin with has neither led to a member nor failed."""
        return any(address.rpartition("/p2p/")[2] not in self.membership.members for address in self._open)

    async def keep(
        self, addresses: Sequence[str], given: Sequence[str] | None = None, *, hint: Hint | None = None, opens: Opens | None = None
    ) -> None:
        """Keep in touch through peers at multiaddrs with /p2p/ID, until cancelled.

        Those `given`, all unless told, are the owner's; the others are of peers that were met in an earlier run, or hints, of which
        nothing is said if they lead nowhere, and each dial of which is reported to `hint`.
        One that does not answer is dialled again after growing pauses, with one event when that begins and one when it ends.

        opens: never, unless given.
        """
        if hint is None:
            self._open = {*addresses}
        async with trio.open_nursery() as nursery:
            for address in sorted(set(addresses)):
                nursery.start_soon(self._keep_one, address, given is None or address in given, hint, opens)

    async def _keep_one(self, address: str, given: bool, hint: Hint | None, opens: Opens | None) -> None:
        """Greet one bootstrap peer whenever it is not among the members, until cancelled or a hint is given up."""
        report = self.context.report
        peer, pause, complained, silent = address.rpartition("/p2p/")[2], FIRST_PAUSE_S, False, 0
        for attempt in count(1):
            present = peer in self.membership.members
            reached = present or await self._greet(address, given=given, complain=not complained and hint is None)
            if hint is not None and not hint(address, reached=reached):
                return
            if reached and complained:
                report.event("bootstrap_reached", f"bootstrap peer {address} answers again", address=address)
            complained = not (reached or hint is not None)
            silent = silent + 1 if reached and not present and hint is None else 0
            if silent == SILENT_GREETINGS and opens is not None and await opens(peer):
                silent = 0
            self.ignored = silent >= SILENT_GREETINGS and len(self.membership.members) == 1
            if self.ignored and silent == SILENT_GREETINGS:
                report.event("bootstrap_silent", SILENT, level="warning", address=address)
                self.membership.begin_anew()
            jitter = 0.75 + 0.5 * derive(self._seed, address, attempt) / 2**63
            await trio.sleep(jitter * (LONGEST_PAUSE_S if present else pause))
            pause = FIRST_PAUSE_S if present else min(2 * pause, LONGEST_PAUSE_S)

    async def _greet(self, address: str, *, given: bool, complain: bool) -> bool:
        """Greet a peer -> whether it could be dialled, and was greeted."""
        try:
            peer = await self.context.network.dial(address, given=given)
        except PeerUnreachable as error:
            self._open.discard(address)
            if complain:
                text = f"bootstrap peer {address} does not answer ({error.reason}); this node goes on and keeps trying"
                self.context.report.event("bootstrap_unreachable", text, level="warning", address=address)
            return False
        self.membership.greet(peer, given=given)
        return True
