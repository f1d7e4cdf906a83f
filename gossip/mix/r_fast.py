"""R-FAST: gradient tracking that survives lost and late messages, on overlays whose links have directions.

Shapes: d parameters.
"""

from __future__ import annotations

from starling.gossip.lazy_torch import torch
from starling.gossip.mix.gradient_tracking import GradientTracking, Tracker
from starling.gossip.mix.running_sums import PullPush


def r_fast() -> GradientTracking:
    """Gradient tracking whose models are pulled and whose trackers are pushed as running sums.

    Invariant: Σ_i y_i + Σ_edges (given − seen) = Σ_i g_i with the gradients last seen, whatever is lost, late or repeated; so the
    optimum is reached exactly. A node that crashes takes y and what is on its way with it, and the others are biased for ever;
    `leave` before going makes up for that.

    Deviations. The paper keeps of y what a split leaves and steps along that: a rate that is smaller by the share kept, 1/(degree + 1)
    for equal weights. Here a node steps along all of its y before it splits it, so rates are those of `GradientTracking`. The paper sends
    the model as it was before the last averaging, here it is sent after the next step; and a model that was received counts once, not
    again until a newer one comes.

    Source: Zhu et al. 2023 (arXiv:2307.11617). With whole messages on a fixed overlay it is push-pull, Pu et al. 2021
    (arXiv:1810.06653).
    """
    return GradientTracking(PullPush())


def leave(state: Tracker) -> Tracker:
    """What a node that leaves in order hands over: y − g, all of it, with a give of 1, to any one neighbor.

    Σ y = Σ g then holds for those that stay. What was given and not yet seen must arrive as well.
    """
    return Tracker(state.y - state.previous, torch.zeros_like(state.previous))
