"""The cost of taking part: speed with and without waiting for peers, bytes against the caps, use of the machine."""

from collections.abc import Iterator

from starling.node.status import format as show
from starling.node.status.snapshot import Resources, StatusSnapshot

BAR = 10


def costs(snapshot: StatusSnapshot) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each figure that is set."""
    yield "steps", f"{_speed(snapshot)}, {show.count(snapshot.local_steps)} in all"
    if pace := show.pace(snapshot):
        yield "pace", pace
    payload = f", payload {show.size(snapshot.payload_bytes)}" if snapshot.payload_bytes else ""
    sent = _capped(snapshot.up_bytes_per_s, snapshot.up_limit_bytes_per_s)
    yield "sent", f"{sent}, {show.size(snapshot.bytes_sent)} in all{payload}"
    received = _capped(snapshot.down_bytes_per_s, snapshot.down_limit_bytes_per_s)
    yield "received", f"{received}, {show.size(snapshot.bytes_received)} in all"
    yield "exchanges", show.ended(snapshot.exchanges)
    if snapshot.seat:
        yield "seat", show.clean(snapshot.seat)
    yield "machine", _machine(snapshot.resources)
    if snapshot.delta is not None:
        yield "privacy", f"ε {show.privacy(snapshot.epsilon, snapshot.delta)}"
    traits = [f"peer {show.short(snapshot.peer)}", show.clean(snapshot.device or ""), f"up {show.duration(snapshot.uptime_s)}"]
    traits += ["rejoined"] if snapshot.rejoined else ["joined late"] if snapshot.joined_late else []
    traits += [f"engine restarts {snapshot.engine_restarts}"] if snapshot.engine_restarts else []
    yield "node", "  ".join(filter(None, traits))


def _speed(snapshot: StatusSnapshot) -> str:
    """Describe the speed; both figures cover the same rounds, so the second is never the higher one."""
    computing, paced = snapshot.steps_per_s, snapshot.paced_per_s
    share = min(1.0, paced / computing) if paced is not None and computing else None
    return f"{show.speed(computing)} computing, {show.speed(paced)} with waiting{_bar(share)}"


def _machine(machine: Resources) -> str:
    """Figures that are not measured, as of a missing GPU, are left out."""
    parts = (
        ("CPU", show.cores(machine.cpu), machine.cpu),
        ("threads", str(machine.threads), machine.threads),
        ("memory", show.size(machine.memory_bytes), machine.memory_bytes),
        ("disk", show.size(machine.disk_bytes), machine.disk_bytes),
        ("GPU", show.share(machine.gpu), machine.gpu),
        ("using", show.size(machine.gpu_memory_bytes), machine.gpu_memory_bytes),
    )
    known = "  ".join(f"{name} {words}" for name, words, figure in parts if figure is not None)
    return known.replace("  using", " using") or show.MISSING


def _capped(rate: float | None, cap: int | None) -> str:
    if cap is None:
        return show.rate(rate)
    return f"{show.rate(rate)} of at most {show.rate(cap)}{_bar(rate / cap if rate is not None and cap else None)}"


def _bar(part: float | None) -> str:
    return f" {show.bar(part, BAR)} {show.share(part)}" if part is not None else ""
