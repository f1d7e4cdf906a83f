"""Make the replica that a manifest describes, around a model on this machine.

Shapes: d parameters, D numbers of the shared vector.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from starling.gossip.api import Mixer, Swapped
from starling.gossip.edge_memory import Committed
from starling.gossip.mix.encoded_effects import decoded
from starling.gossip.mix.kinds import EdgeKind, kind_of
from starling.gossip.mix.personal import SHARES, Personal, chosen
from starling.gossip.replica import Adjust, Replica
from starling.gossip.vector import Layout
from starling.node.engine.compression import selector_facts
from starling.node.engine.local.local_model import LocalModel
from starling.node.engine.mixing import mixer_of, settled_edges
from starling.node.rpc.calls import Open
from starling.node.tasks.reserved import Reserved


def replica_of(open_request: Open, model: LocalModel) -> Replica:
    """Return the replica of a task's model. Raises ConfigError: its mixing algorithm does not fit the model or the node's settings."""
    if isinstance(model.data, Reserved):
        return replica_around(open_request, model.x, model.layout, model.beginning, partial(_own_shares, model, model.data.aside))
    return replica_around(open_request, model.x, model.layout, model.beginning)


def replica_around(
    open_request: Open,
    x: Tensor,
    layout: Layout,
    beginning: Callable[[], Tensor],
    adjust: Callable[[Mixer], Adjust] = lambda _mixer: lambda done, _shared: done,
) -> Replica:
    """Return the replica of a model x (d,), which it changes in place; `beginning` makes the model (d,) that all nodes began with.

    `adjust` makes the replica's of its mixing algorithm. Raises ConfigError as `replica_of`.
    """
    manifest = open_request.manifest
    mixer, shared_layout = mixer_of(manifest, layout)
    kind = kind_of(mixer.edge)
    compares = kind is EdgeKind.DIFFERENCES and selector_facts(manifest.compress, kind).compares
    return Replica(x, mixer, shared_layout, beginning, settled_edges=settled_edges(manifest), keep_origin=compares, adjust=adjust(mixer))


def _own_shares(model: LocalModel, aside: Any, mixer: Mixer) -> Adjust:
    """Return a function that takes, of each effect of a difference, the share with the lowest loss on samples set aside."""
    put = mixer.put if isinstance(mixer, Personal) else lambda _x, shared: shared

    def adjusted(done: Committed, shared: Tensor) -> Committed:
        assert not isinstance(done, Swapped)
        value = decoded(done).value
        models = [put(model.x, done.support.add(shared, share * done.theta * value)) for share in SHARES]
        best = chosen(model.losses(aside, torch.stack(models)))
        return replace(done, theta=done.theta * float(best))

    return lambda done, shared: [adjusted(each, shared) for each in done]
