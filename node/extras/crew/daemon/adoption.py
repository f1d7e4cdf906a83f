"""Start a second node on this machine for the next stage, if it stays unassigned and a copy of its state is here."""

from collections.abc import Sequence

from starling.gossip.errors import GossipError
from starling.node.daemon.context import NodeContext, SecondNodes
from starling.node.extras.crew.daemon.stage_peers import StagePeers

FREE_S = 0.5  # seconds for which a stage is free before it is taken over
LEFT_S = 30.0  # the same if its former node lives and only took another stage: it may come after us
AGAIN_S = 30.0


class Adoption:
    """Takes over the next stage. `seconds`: None: this machine starts no further nodes."""

    def __init__(self, context: NodeContext, stage_peers: StagePeers, seconds: SecondNodes | None) -> None:
        self._context, self._stage_peers, self._seconds = context, stage_peers, seconds
        self._free_since: float | None = None
        self._adopted_at: float | None = None

    def poll(self, copies: Sequence[int], peers: Sequence[str], now: float) -> None:
        """Check whether the next stage must be taken over.

        `copies`: states of that stage stored here; () also while the crew is complete, or does not wait. `peers` by stage, when the crew
        was last complete.
        """
        at = self._stage_peers
        behind = (at.stage + 1) % at.stages
        if at.peers is not None:
            self._free_since = None
            return
        if self._free_since is None:
            self._free_since = now
        lives = bool(peers) and bool(at.elsewhere(peers[behind : behind + 1]))
        if not copies or behind not in at.lacking or now - self._free_since < (LEFT_S if lives else FREE_S):
            return
        if self._seconds is None or (self._adopted_at is not None and now - self._adopted_at < AGAIN_S):
            return
        self._adopted_at = now
        self._start(self._seconds, behind)

    def _start(self, seconds: SecondNodes, stage: int) -> None:
        report, what = self._context.report, f"stage {stage} of crew {self._stage_peers.crew} is lost"
        try:
            if seconds.start(stage, self._context.network.addresses):
                text = f"{what}; a node on this machine takes it, with the copy of its state that is here"
                report.event("crew_adopts", text, level="warning", stage=stage)
                return
            why = "it cannot be a member (admission.kind)"
        except (GossipError, OSError) as error:
            why = str(error)
        report.event("crew_waits", f"{what}; no node on this machine can take it: {why}", level="error", stage=stage)
