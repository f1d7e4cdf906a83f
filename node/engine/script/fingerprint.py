"""Check that a script's model is the one that its swarm trains."""

from starling.gossip.vector import Layout
from starling.node.config.schema import Manifest
from starling.node.rpc.script import VERSION, Hello

FROZEN = "frozen "


def difference(hello: Hello, layout: Layout, manifest: Manifest) -> str:
    """Return how a script's model differs from the swarm's, one line with what to do; "" if it does not."""
    if hello.version != VERSION:
        return f"this script speaks version {hello.version} of the messages to its node, the node {VERSION}; use one starling for both"
    ours, swarm = (dict(zip(hello.names, hello.shapes, strict=False)), dict(zip(layout.names, layout.shapes, strict=True)))
    for name, shape in swarm.items():
        if name not in ours:
            return f"the model has no trainable parameter {name}, the swarm's has; build the model that the swarm was created with"
        if ours[name] != shape:
            return f"{name} has shape {ours[name]}, the swarm's has {shape}; build the model that the swarm was created with"
    if foreign := [name for name in ours if name not in swarm]:
        return f"the model trains {foreign[0]}, the swarm's does not; freeze it, or build the model that the swarm was created with"
    if hello.names != layout.names:
        return "the parameters of the model stand in another order than the swarm's; build it as the swarm's creator does"
    frozen = next((line.removeprefix(FROZEN) for line in manifest.task.fingerprint if line.startswith(FROZEN)), "")
    if frozen and not manifest.task.any_base and hello.frozen != frozen:
        return (
            "parameters that are not trained have other values than the swarm's, as of another base model or download; load the base that "
            "the creator has (a swarm created with task.any_base=true lets each have its own)"
        )
    return ""
