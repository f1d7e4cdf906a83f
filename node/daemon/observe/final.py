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
        if isinstance(cause, ConfigError):
            return  # refused input: no run has begun
        if isinstance(cause, Exception):
            self._write("failed", str(cause) if isinstance(cause, GossipError) else f"{type(cause).__name__}: {cause}")
        else:  # the run ended in order, or a second signal cancelled it
            self._write("finished" if self._finished or self.progress.state == "finished" else "left")

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
