"""`starling.Swarm`: make your own training loop a member of a swarm.

The node runs in processes of its own. At a round's end the script writes its parameters to memory that it shares with
the engine, which exchanges them, and reads the mixed ones back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

from msgspec import structs
from torch import Tensor, nn
from torch.optim import Optimizer

from starling.gossip.errors import ConfigError, GossipError
from starling.node import child_node, run_directory
from starling.node.config.assignments import assignments
from starling.node.node_handle import Attached
from starling.node.rpc.script import SOCKET_NAME
from starling.node.script import creation
from starling.node.script.member import Member
from starling.node.script.optimizers import unwrapped
from starling.node.script.parts import Parts
from starling.node.script.processes import refuse_ranks, refuse_workers
from starling.node.script.state_copies import Copies
from starling.node.status import control
from starling.node.status.snapshot import StatusSnapshot
from starling.node.storage.run_dir import RunDir

T = TypeVar("T")
_OPEN: WeakValueDictionary[Path, Swarm] = WeakValueDictionary()
"""Open swarms of this process, by run directory."""


class Running:
    """A node that this script has started, or that was running. Satisfies `starling.node.script.member.Life`."""

    def __init__(self, folder: Path, node: child_node.Node | None) -> None:
        self._folder, self.node = folder, node

    def check(self) -> None:
        """Raise GossipError: the node does not run."""
        if self.node is not None:
            self.node.raise_if_ended()
        elif not Attached(self._folder).running:
            raise GossipError(f"no node is running in {self._folder}; see `starling status --dir {self._folder}`")

    def is_over(self) -> bool:
        """Return whether it has ended in order."""
        attached = Attached(self._folder)
        if attached.running:
            return False
        if self.node is not None and self.node.process is not None:
            if self.node.process.wait(child_node.GRACE_S):
                self.node.raise_if_ended()
            return True
        last = attached.last
        if last is None or last.ended == "failed":
            why = "was killed" if last is None else last.reason
            raise GossipError(f"the node in {self._folder} {why}; start it with `starling run --dir {self._folder}`, and the script again")
        return True

    def doing(self) -> str:
        """Return its problem, or what it does; "" while it does not run."""
        try:
            status = control.status(self._folder)
        except control.ControlError:
            return ""
        return f"the node in {self._folder}: {control.addressed(status.problem or status.activity or status.state, self._folder)}"


class Swarm:
    """A member of a swarm, whose local steps are those of this script.

    Args:
        folder: the run directory. It may hold a node of that swarm, which then goes on where it stopped.
        invite: the line that a member prints; None: the directory holds a node.
        model: its trainable parameters are exchanged, as far as the optimizer holds them.
        optimizer: the optimizer that steps it, or several.
        evaluate: called when the swarm wants a figure: returns a number, or several by name.
        state: objects with a `state_dict` that are saved with the node's checkpoints, by name.
        listen: as for `starling.join`.
        config: as for `starling.join`.
        copies: further names under which optimisers store copies of parameters, or a function that gives them.
        by_hand: the script calls `correct` and `corrected` around each step, of an optimizer that has no hooks.

    Raises:
        ConfigError: the model is not the swarm's, the optimizer does not hold its parameters, or a wrong key or value.
        GossipError: the node failed.
    """

    def __init__(
        self,
        folder: str | Path,
        invite: str | None = None,
        *,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        evaluate: Callable[[], Any] | None = None,
        state: Mapping[str, Any] | None = None,
        listen: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        copies: Copies = (),
        by_hand: bool = False,
    ) -> None:
        self._check_process()
        parts = Parts(model, unwrapped(optimizer, by_hand=by_hand), evaluate, state, copies)
        self._folder = Path(folder)
        if (open_here := _OPEN.get(self._folder.resolve())) is not None:  # a notebook cell that is run again
            open_here.close()
        place = RunDir(self._folder)
        before = place.read_config() if place.config_file.exists() else None
        self._life = Running(self._folder, started(self._folder, invite, listen, config))
        try:
            self._member = Member(self._folder, parts, self._life)
        except BaseException as error:
            self._stop()
            if isinstance(error, ConfigError) and before is not None and self._life.node is not None:
                place.write_config(before)  # a node of a task, named by mistake, would wait for a script from now on
            raise
        _OPEN[self._folder.resolve()] = self

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        rounds: int | None = None,
        local_steps: int | None = None,
        quorum: int | None = None,
        metric: str | None = None,
        higher_is_better: bool | None = None,
        set: Mapping[str, Any] | None = None,
        preset: str | None = None,
        evaluate: Callable[[], Any] | None = None,
        state: Mapping[str, Any] | None = None,
        listen: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        copies: Copies = (),
        by_hand: bool = False,
    ) -> Self:
        """Create a swarm that begins with the parameters that the model has now, and return its first member.

        Args:
            folder: the run directory; one that holds a node goes on with that, and refuses what its swarm has otherwise.
            rounds: of the run, 200 unless given; 0 is endless.
            local_steps: steps of the optimizer between exchanges, 20 unless given.
            quorum: members that must be there before training begins, 2 unless given.
            metric: name of what `evaluate` or `log` gives; "loss" unless given.
            higher_is_better: which way it improves; left out: not for a loss or an error.
            set: other keys of the manifest, dotted.
            preset: "vouched" or "open".
            model: as for `Swarm`, as all that follow.
            optimizer: as there.
            evaluate: as there.
            state: as there.
            listen: as there.
            config: as there.
            copies: as there.
            by_hand: as there.
        """
        cls._check_process()
        own = {"listen": [listen] if isinstance(listen, str) else listen, **(config or {})}
        given = {"pace.rounds": rounds, "pace.local_steps": local_steps, "pace.quorum": quorum, **(set or {})}
        if run_directory.holds_node(Path(folder)):
            figure = {"task.metric": metric, "task.higher_is_better": higher_is_better}
            creation.go_on(Path(folder), {**given, **figure}, assignments(own))
        else:
            metric = "loss" if metric is None else metric
            parts = Parts(model, unwrapped(optimizer, by_hand=by_hand), copies=copies)
            lower = metric in {"loss", "error"} or metric.endswith(("_loss", "_error"))
            measured = creation.Metric(metric, not lower if higher_is_better is None else higher_is_better)
            creation.create(Path(folder), parts, measured, given, preset, own)
        return cls(folder, model=model, optimizer=optimizer, evaluate=evaluate, state=state, copies=copies, by_hand=by_hand)

    @staticmethod
    def _check_process() -> None:
        """Raise ConfigError: this process can be no member."""
        refuse_workers()
        refuse_ranks()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def invite(self) -> str:
        """Return the line by which others join, once the node listens."""
        node = self._life.node
        return Attached(self._folder).invite() if node is None else node.invite()

    def status(self) -> StatusSnapshot:
        """Return the node's status."""
        return Attached(self._folder).status()

    @property
    def round(self) -> int:
        """Return the current round; at first, wait until training begins."""
        return self._member.grant.round

    @property
    def finished(self) -> bool:
        """Return whether the swarm has done its rounds, or the node has ended; at first, wait until training begins."""
        return self._member.grant.finished

    def lr(self) -> float:
        """Return the learning rate of the manifest's schedule in this round, for scripts without one of their own."""
        return self._member.grant.rate

    def epochs(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the batches of a loader again and again, until the swarm has finished.

        Raises ConfigError: the loader gives none.
        """
        while not self.finished:
            count = 0
            for batch in loader:
                count += 1
                yield batch
                if self._member.grant.finished:
                    return
            if not count:
                raise ConfigError("epochs: the loader gives no batch; give one with samples")

    def step(self, loss: Tensor | float | None = None) -> bool:
        """Count a local step, if an optimizer made one -> whether a round ended with it, so that the model is mixed now.

        At a round's end it waits for peers, and replaces the values of the parameters. Raises ConfigError: the model was replaced or is no
        longer finite, or the swarm has finished; GossipError: the node failed.
        """
        return self._member.step(loss)

    def correct(self, optimizer: Optimizer | None = None) -> None:
        """Correct gradients before the step of an optimizer without hooks; None: those of all optimizers."""
        self._member.hooks.correct(optimizer)

    def corrected(self, optimizer: Optimizer | None = None) -> None:
        """Note that such an optimizer has made its step."""
        self._member.hooks.corrected(optimizer)

    def log(self, **figures: float) -> None:
        """Store figures of the model, by name, for the swarm's next evaluation; for scripts without `evaluate`."""
        self._member.measuring.log(figures)

    def state_dict(self) -> dict[str, Any]:
        """Return this script's position in a round, to be saved with its own checkpoint of the model."""
        return self._member.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the middle of a round from the script's own checkpoint, if the node is still in that round.

        Call it before the first step; the parameters that the model has then stay, unless the node is elsewhere.
        """
        self._member.load_state_dict(state)

    def close(self, *, part: bool = True) -> None:
        """Leave. The node ends in order, if this script started it; one that was running goes on without local steps.

        Args:
            part: give it the steps of an unfinished round. Not where the model is by now another than the one that was trained.
        """
        self._member.close(part=part)
        if self._life.node is not None and self._member.has_finished:
            self._life.node.wait_until_finished()
        self._stop()

    def _stop(self) -> None:
        if self._life.node is not None:
            self._life.node.stop()


def started(
    folder: Path, invite: str | None, listen: str | Sequence[str] | None, config: Mapping[str, Any] | None
) -> child_node.Node | None:
    """Start the node of a directory -> it; None: it was running. Raises ConfigError: there is none."""
    if run_directory.holds_node(folder) and Attached(folder).running:
        return None
    if invite is None:
        node = child_node.Node(folder)
        place = RunDir.existing(folder)
        place.write_config(structs.replace(place.read_config(), script=True))
    else:
        node = child_node.join(folder, invite, listen=listen, config={**(config or {}), "script": True})
    (folder / SOCKET_NAME).unlink(missing_ok=True)
    return node.start()
