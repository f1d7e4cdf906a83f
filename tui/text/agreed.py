"""The manifest's agreements as text."""

from starling.node.status import format as show
from starling.node.status.snapshot import StatusSnapshot


def said(snapshot: StatusSnapshot) -> list[tuple[str, str]]:
    """Return (name, text) per row of the manifest; only the names of kinds if the node reports no more."""
    method = f"{snapshot.algorithm} over {snapshot.overlay}" if snapshot.algorithm else ""
    rows = (
        ("swarm", f"{snapshot.name} ({snapshot.swarm})" if snapshot.name else snapshot.swarm),
        *(snapshot.agreed or (("learns", snapshot.task), ("method", method))),
        ("parameters", show.count(snapshot.parameters)),
    )
    return [(show.clean(name), show.clean(words) or show.MISSING) for name, words in rows]
