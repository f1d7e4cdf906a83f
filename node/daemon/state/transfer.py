"""The state lane: the manifest for holders of an invite, the model for late joiners.

Serving: manifests, and this node's model (`snapshots`). A node that fetches a model itself offers none. Under other numbers there may be
what is lent to all who know them, as `starling.node.daemon.state.start_model` does.
Fetching: peers make offers of a schema, size and root of digests (`starling.gossip.chunks`). `model_sync` decides which of the models to
install, and `downloads` fetches it.

What a peer can cause here: MAX_REPLIES chunks of 1 MiB at a time.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import trio

from starling.gossip.errors import EngineError, RemoteProtocolError, TransportError
from starling.gossip.seeds import derive
from starling.gossip.wire import frames
from starling.gossip.wire.schema import (
    ChunkQuery,
    DigestsQuery,
    ManifestQuery,
    ManifestReply,
    Message,
    StageQuery,
    StageReply,
    StateOffer,
    StateQuery,
)
from starling.node.daemon.state.asking import REPLY_S, Asking
from starling.node.daemon.state.downloads import Downloads, Offered
from starling.node.daemon.state.snapshots import Snapshots, engine_s
from starling.node.interfaces import EngineHandle, Reporter, TaskStatus
from starling.node.net.api import Network
from starling.node.rpc import calls

OFFER_GRACE_S = 1.0
MAX_REPLIES = 4  # replies in flight to one peer; further queries are dropped, and honest peers repeat them
WIDEST_SCALAR = 8  # bytes of a float64
STATE_HEADER_BYTES = 64 << 10

Query = ManifestQuery | StateQuery | ChunkQuery | DigestsQuery | StageQuery
Lent = Callable[[str, ChunkQuery | DigestsQuery], Awaitable[None]]
"""Function that answers a peer's query."""


class Transfer:
    """The state lane of one node; `manifest` gives the canonical bytes of a manifest by swarm id, or None.

    `partial`: where to keep what was received of a model over restarts; None: nowhere.
    """

    def __init__(self, *, network: Network, report: Reporter, manifest: Callable[[str], bytes | None], partial: Path | None = None) -> None:
        self._network, self._report, self._manifest = network, report, manifest
        self._snapshots = Snapshots()
        self._schema = b""
        self._replying: Counter[str] = Counter()
        self._lent: dict[int, Lent] = {}
        self.asking = Asking(network)
        self.downloads = Downloads(self.asking, report, partial)
        self._nonce = 0
        self._may: Callable[[str], bool] = lambda _peer: True
        # returns the stage of a crew that a newcomer should take; None: not known, or there are no crews
        self.seats: Callable[[str], int] | None = None

    def expect(self, opened: calls.Opened) -> None:
        """Refuse offers of models with another schema than this engine's, or of more bytes."""
        self._schema = opened.schema
        self._snapshots.most_bytes = WIDEST_SCALAR * opened.parameters + STATE_HEADER_BYTES

    def give(self, engine: EngineHandle, may: Callable[[str], bool]) -> None:
        """Serve this engine's model from now on to peers for which `may` returns True."""
        self._snapshots.give(engine)
        self._may = may

    def lend(self, snapshot: int, lent: Lent) -> None:
        """Serve `lent` from now on to peers that request this snapshot number."""
        self._lent[snapshot] = lent

    def _lent_by(self, query: Message) -> Lent | None:
        return self._lent.get(query.snapshot) if isinstance(query, ChunkQuery | DigestsQuery) else None

    async def serve(self, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Answer and route frames until cancelled."""
        inbound = self._network.inbound("state")
        task_status.started()
        async with trio.open_nursery() as nursery:
            async for item in inbound:
                try:
                    message = frames.decode("state", item.peer, item.frame)
                    of_model = isinstance(message, StateQuery | ChunkQuery | DigestsQuery)
                    if of_model and not self._may(item.peer) and self._lent_by(message) is None:
                        continue
                    if isinstance(message, StageQuery) and self.seats is None:
                        continue  # the peer that asked tries again
                except RemoteProtocolError as error:
                    self._report.fault(error.peer, error.reason)
                    continue
                if isinstance(message, Query):
                    if self._replying[item.peer] < MAX_REPLIES:
                        self._replying[item.peer] += 1
                        nursery.start_soon(self._respond, item.peer, message)
                else:
                    self.asking.route(item.peer, message)

    async def _respond(self, peer: str, query: Query) -> None:
        try:
            if isinstance(query, ChunkQuery | DigestsQuery) and (lent := self._lent_by(query)) is not None:
                with trio.fail_after(REPLY_S):
                    await lent(peer, query)
                return
            reply = await self._reply(peer, query)
            with trio.fail_after(REPLY_S):
                await self._network.send(peer, "state", frames.encode(reply))
        except (EngineError, TransportError, trio.TooSlowError):
            return  # the peer repeats its query, or asks another
        finally:
            self._replying -= Counter((peer,))

    async def _reply(self, peer: str, query: Query) -> Message:
        if isinstance(query, StageQuery):
            assert self.seats is not None
            return StageReply(query.nonce, self.seats(peer))
        if isinstance(query, ManifestQuery):
            return ManifestReply(query.swarm, self._manifest(query.swarm) or b"")
        if isinstance(query, DigestsQuery):
            return self._snapshots.digests(query)
        if isinstance(query, StateQuery):
            return await self._snapshots.offer(query)
        return await self._snapshots.chunk(query)

    async def fetch_manifest(self, peer: str, swarm: str) -> bytes:
        """Return the canonical manifest bytes from a peer, unchecked: the caller compares the hash.

        Raises TransportError, trio.TooSlowError: no answer; RemoteProtocolError: the peer does not know this swarm.
        """
        reply = await self.asking.ask(peer, ManifestReply, ManifestQuery(swarm))
        if not reply.manifest:
            raise RemoteProtocolError(peer, "unknown_swarm")
        return reply.manifest

    async def ask_stage(self, peer: str) -> int:
        """Return the stage of a crew that a member says is wanted most. Raises TransportError, trio.TooSlowError: no answer."""
        self._nonce += 1
        nonce = derive(self._nonce, "seat_query", self._network.peer_id) >> 1
        return (await self.asking.ask(peer, StageReply, StageQuery(nonce))).stage

    async def answers(self, peer: str, swarm: str) -> bool:
        """Return whether a peer answers at all, also before its engine is open and it is a member."""
        try:
            await self.fetch_manifest(peer, swarm)
        except (TransportError, trio.TooSlowError):
            return False
        except RemoteProtocolError:  # this peer lacks the manifest too
            pass
        return True

    async def offers(self, peers: Sequence[str], outer: Mapping[str, bytes] = MappingProxyType({}), newer_than: int = -1) -> list[Offered]:
        """Return the offers of these peers, in order of peer id; without those that do not answer or offer another model.

        `outer`: digest of the outer parameters that a peer is asked for, else of models. Once two have offered a model that is newer than
        a round, or two an older one, or one has outer parameters, the others have as long again as these took, and `OFFER_GRACE_S`:
        otherwise a silent peer would cost `REPLY_S`, and of a large model as long as a snapshot may take.
        """
        offers: list[Offered] = []
        began, most_bytes, enough = trio.current_time(), self._snapshots.most_bytes, 1 if outer else 2

        async def ask(peer: str, scope: trio.CancelScope) -> None:
            self._nonce += 1
            nonce = derive(self._nonce, "state_query", self._network.peer_id) >> 1
            try:
                reply = await self.asking.ask(peer, StateOffer, StateQuery(nonce, outer.get(peer, b"")), timeout_s=engine_s(most_bytes))
            except (TransportError, trio.TooSlowError):
                return
            if reply.size > most_bytes or (reply.size and reply.schema != self._schema):
                self._report.fault(peer, "state_of_another_model")
                return
            offers.append(Offered(peer, reply, trio.current_time() - began))
            alike = sum(it.offer.size > 0 and (it.offer.round > newer_than) == (reply.round > newer_than) for it in offers)
            if reply.size and alike == enough:
                scope.deadline = 2.0 * trio.current_time() - began + OFFER_GRACE_S

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, peer, nursery.cancel_scope)
        return sorted(offers, key=lambda item: item.peer)
