"""What one exchange may cost: the manifest's figure, or what the edge has shown it can carry in a slot, under the volunteer's cap."""

from __future__ import annotations

from starling.gossip.compress.budget import exchange_budget
from starling.node.config.schema import Manifest, NodeConfig

FILL = 0.5  # share of a slot on the wire: the rest is for the other direction, retransmission and the other edges
TELLING_BYTES = 64 << 10  # smaller frames vanish into socket buffers and say nothing about the link
SMOOTHING = 0.3


class Budget:
    """Bytes per exchange by peer.

    Args:
        manifest: its `compress.budget_bytes`, if not 0, overrides everything.
        config: the volunteer's caps.
    """

    def __init__(self, manifest: Manifest, config: NodeConfig) -> None:
        self._fixed = manifest.compress.budget_bytes
        self._slot_s = manifest.pace.slot_s
        caps = [cap for cap in (config.up_bytes_per_s, config.down_bytes_per_s) if cap > 0]
        self._cap = min(caps, default=0)
        self._rates: dict[str, float] = {}

    def __call__(self, peer: str) -> int:
        """Bytes that both payloads of one exchange with `peer` may take; 0 is no limit known."""
        if self._fixed:
            return self._fixed
        return exchange_budget(self._rates.get(peer, 0.0), self._slot_s, FILL, self._cap)

    def observe(self, peer: str, sent_bytes: int, seconds: float) -> None:
        """A frame of `sent_bytes` took `seconds` to be handed to the network."""
        if sent_bytes < TELLING_BYTES or seconds <= 0:
            return
        rate = sent_bytes / seconds
        known = self._rates.get(peer)
        self._rates[peer] = rate if known is None else (1 - SMOOTHING) * known + SMOOTHING * rate

    def forget(self, peer: str) -> None:
        """The peer is gone."""
        self._rates.pop(peer, None)
