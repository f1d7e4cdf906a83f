"""The manifest's agreements as text."""

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot


def said(snapshot: StatusSnapshot) -> list[tuple[str, str]]:
    """Name and words of a row each; by the names of the kinds alone where the node says no more."""
    method = f"{snapshot.algorithm} over {snapshot.overlay}" if snapshot.algorithm else ""
    rows = (
        ("swarm", f"{snapshot.name} ({snapshot.swarm})" if snapshot.name else snapshot.swarm),
        *(snapshot.agreed or (("learns", snapshot.task), ("method", method))),
        ("parameters", show.count(snapshot.parameters)),
    )
    return [(show.clean(name), show.clean(words) or show.MISSING) for name, words in rows]
