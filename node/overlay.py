"""From a manifest to the overlay it names. Torch-free."""

from __future__ import annotations

from gossip.overlay.api import Overlay
from gossip.overlay.catalogue import overlay
from node.config import Manifest


def overlay_of(manifest: Manifest) -> Overlay:
    """The overlay of a swarm.

    Raises:
        ConfigError: parameters that its kind does not take, or refuses.
    """
    section = manifest.overlay
    return overlay(
        section.kind, section.k, manifest.seed, average_every=section.average_every, overlap=section.overlap,
        weights=section.weights or None, factor=section.factor or None, basis=section.basis or None, eta=section.eta or None,
    )  # fmt: skip
