"""Writes `final.json` (`starling.node.status.final`): when the last round is done, and when the node ends for any reason."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from msgspec import structs

from starling.gossip.errors import ConfigError, GossipError
from starling.node.daemon.events import Changes
from starling.node.daemon.progress import Progress
from starling.node.status.final import Ended, FinalStatus
from starling.node.status.snapshot import StatusSnapshot
from starling.node.storage.run_dir import RunDir


@dataclass(slots=True)
class FinalWriter:
    """Writes final.json of one run directory; as a context manager around the node's run it writes how that ended."""

    run_dir: RunDir
    progress: Progress
    snapshot: Callable[[], StatusSnapshot]
    changes: Changes
    before: FinalStatus | None = None
    """How the run before ended, which holds on if this one ends before anything was done."""
    _finished: bool = False

    async def serve(self) -> None:
        """Wait until all rounds are done and write the result, so that it survives a kill while the node lingers."""
        while self.progress.state != "finished":
            await self.changes.event.wait()
        self._finished = True
        self._write("finished")

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        cause = first_error(error) if isinstance(error, BaseExceptionGroup) else error
        nothing_done = not self.progress.round and not self.progress.figures.local_steps
        if isinstance(cause, ConfigError):  # refused input: no run has begun
            self._keep_before()
        elif isinstance(cause, Exception):
            self._write("failed", str(cause) if isinstance(cause, GossipError) else f"{type(cause).__name__}: {cause}")
        elif nothing_done and self.before is not None:
            self._keep_before()
        else:  # the run ended in order, or a second signal cancelled it
            self._write("finished" if self._finished or self.progress.state == "finished" else "left")

    def _keep_before(self) -> None:
        if self.before is not None:
            self.run_dir.keep_final(self.before)

    def _write(self, ended: Ended, reason: str = "") -> None:
        state = "leaving" if ended == "left" else ended
        snapshot = structs.replace(self.snapshot(), state=state, problem=reason or None)
        model = self.run_dir.model
        name = model.name if model.exists() else ""
        self.run_dir.keep_final(FinalStatus(ended, snapshot, reason, name))


def first_error(group: BaseExceptionGroup) -> BaseException:
    """Return the error to show: a ConfigError, else a GossipError, else the first."""
    kinds = (ConfigError, GossipError, KeyboardInterrupt)
    error: BaseException = next(filter(None, map(group.subgroup, kinds)), group)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
