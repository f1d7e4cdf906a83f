"""Detect another node that runs with this node's key: its records come back newer than they were signed here."""

from starling.gossip.membership.local_record import LocalRecord
from starling.node.daemon.context import NodeContext

IDENTITY_TWICE = (
    "another node runs with this node's identity.key, and peers take the two for one that restarts all the time; stop one of them "
    "with `starling leave`, or move the key out of its directory, so that it gets one of its own"
)


class OwnKey:
    """Watches for another node with this node's key.

    Attributes:
        is_twice: another node runs with it.
    """

    def __init__(self, context: NodeContext, local: LocalRecord) -> None:
        self._context, self._local = context, local
        self._rival = -1
        self.is_twice = False

    def check(self) -> None:
        """Look for a record of ours from a start between this one and now: it is another node's. One from the future comes from a clock set
        back.
        """
        context, rival = self._context, self._local.outranked
        if rival == self._rival:
            return
        self._rival = rival
        if context.incarnation < rival <= context.unix_time() * 1000 and not self.is_twice:
            self.is_twice = True
            context.report.event("identity_twice", IDENTITY_TWICE, level="error")
