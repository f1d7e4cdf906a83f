"""A node of this machine, looked at and used from outside: `starling.attach(dir)`, and most commands of the command line.

Works on a running node through its control socket, and on one that has ended through the files it left behind. Torch-free: models
are loaded by a program of their own (`starling.node.engine.offline`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.wire.schema import MAX_ADDRESSES
from starling.node.admission import invite as invites
from starling.node.admission import issue
from starling.node.admission.issue import Issued
from starling.node.identity import Identity
from starling.node.status import control, final
from starling.node.status.control import typed
from starling.node.status.snapshot import StatusSnapshot
from starling.node.storage.run_dir import RunDir

LEAVE_S = 5.0  # from a request to leave to the end of the process
DAYS = 90.0  # that an invitation lasts
WRONG_INPUT = 2  # exit code of a program that was given something impossible


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model's result on held-out data.

    Args:
        metric: accuracy, bits_per_byte, error …; "" if nothing was measured yet.
        value: mean over the held-out samples, None if nothing was measured yet.
        round: rounds that the model had done.
    """

    metric: str
    value: float | None
    round: int | None


class Attached:
    """The node in a run directory, running or ended. Nothing is held open between calls.

    Args:
        run_dir: as given to `starling found`, `join` or `run`.

    Methods raise:
        ConfigError: the directory has never held a node.
        ControlError: no node answers there and it left nothing to answer from, or the node refuses.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = Path(run_dir)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.run_dir)!r})"

    @property
    def running(self) -> bool:
        """Whether a node's control socket accepts connections."""
        try:
            control.connect(self.run_dir).close()
        except control.NotRunning:
            return False
        return True

    @property
    def last(self) -> final.FinalStatus | None:
        """How the last run ended; None if it still runs, was killed, or never ran.

        Raises:
            GossipError: the file that says so is damaged.
        """
        try:
            return final.load(self.run_dir)
        except ValueError as error:
            raise GossipError(f"{error}; start the node with `starling run --dir {typed(self.run_dir)}`") from error

    def ask(self, op: str, **fields: Any) -> dict[str, object]:
        """One request to the running node (see node.status.control) -> the fields of its answer."""
        try:
            return control.request(self.run_dir, op, **fields)
        except control.NotRunning:
            RunDir.existing(self.run_dir)
            raise

    def status(self) -> StatusSnapshot:
        """The node's status now, or its last one if it has ended."""
        try:
            return control.status(self.run_dir)
        except control.NotRunning:
            RunDir.existing(self.run_dir)
            last = self.last
            if last is None:
                raise
            return last.snapshot

    def __iter__(self) -> Iterator[StatusSnapshot]:
        """Snapshots of the running node, one a second and one per change, until it has finished its rounds or does not answer."""
        try:
            for snapshot in control.watch(self.run_dir):
                yield snapshot
                if snapshot.state == "finished":
                    return
        except control.ControlError:
            if self.running:
                raise

    def evaluate(self, data: str | Path | None = None) -> Evaluation:
        """Evaluate the model as it is now.

        Args:
            data: a file or folder in the task's form: its test split is used, or all of an .npz file without one. Default: the
                task's held-out data.
        """
        if data is not None:
            return self._evaluated_on(Path(data))
        try:
            return _evaluation(self.ask("evaluate"))
        except control.NotRunning:
            last = self.last
            if (
                last is not None
                and last.snapshot.value is not None
                and last.snapshot.value_round == last.snapshot.round
            ):
                return Evaluation(last.snapshot.metric, last.snapshot.value, last.snapshot.value_round)
            return self._evaluated_on(None)

    def export(self, file: str | Path) -> None:
        """Write the model as safetensors; an existing file is replaced.

        Raises:
            GossipError: it cannot be written.
        """
        target = Path(file).absolute()
        try:
            self.ask("export", path=str(target))
        except control.NotRunning:
            place, last = RunDir(self.run_dir), self.last
            finished = last is not None and last.ended == "finished"
            if place.model.exists() and (finished or not place.checkpoint.exists()):
                _copy(place.model, target)
            elif place.checkpoint.exists():
                _offline("export", self.run_dir, target)
            else:
                raise

    def invite(self, *, days: float = DAYS, peer: str = "") -> str:
        """A line by which others join the swarm.

        Args:
            days: how long an invitation lasts, where the swarm asks for one.
            peer: the only peer that can use it; "": the first who does.
        """
        status = self.status()
        if not status.addresses:
            raise GossipError(f"the node in {self.run_dir} does not listen yet; try again in a moment")
        line, _ = make_invite(RunDir(self.run_dir), status.swarm, status.addresses, days=days, peer=peer)
        return line

    def leave(self) -> None:
        """Send a farewell, save and stop, and wait until the node has ended.

        Raises:
            GossipError: it has not within five seconds.
        """
        self.ask("leave")
        deadline = time.monotonic() + LEAVE_S
        while self.running:
            if time.monotonic() > deadline:
                raise GossipError(
                    f"the node in {self.run_dir} is leaving, but has not ended yet; see `starling status --dir {typed(self.run_dir)}`"
                )
            time.sleep(0.05)

    def _evaluated_on(self, data: Path | None) -> Evaluation:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model.safetensors"
            self.export(model)
            answer: dict[str, object] = json.loads(
                _offline("evaluate", self.run_dir, model, *([] if data is None else [data]))
            )
            return _evaluation(answer)


def make_invite(
    place: RunDir, swarm: str, addresses: tuple[str, ...], *, days: float = DAYS, peer: str = ""
) -> tuple[str, Issued | None]:
    """The line to join by, and the invitation in it where the swarm asks for one.

    Args:
        place: the inviter's run directory, where invitations are numbered.
        swarm: its id.
        addresses: at which the inviter can be dialled; the first eight are used.
        days: how long an invitation lasts, > 0.
        peer: the only peer that can use it; "": the first who does.

    Raises:
        ConfigError: the node may not invite, has no invitation left, or the swarm asks for none.
    """
    bootstrap = addresses[:MAX_ADDRESSES]
    manifest = place.read_manifest()
    if manifest is None or manifest.admission.kind != "invite":
        if peer or (manifest is not None and days != DAYS):
            raise ConfigError(
                f"--{'for' if peer else 'days'}: this swarm takes members without invitation; `starling invite` is enough"
            )
        return invites.encode(invites.Invite(swarm, bootstrap)), None
    me = Identity.load_or_create(place.key)
    issued = issue.give(
        place.issued, issue.terms_of(manifest, swarm), me, issue.take_up(place.read_invite(), me), bootstrap, days=days,
        now_s=time.time(), peer=peer,
    )  # fmt: skip
    return invites.encode(issued.invite), issued


def _evaluation(answer: dict[str, object]) -> Evaluation:
    value, at = answer.get("value"), answer.get("round")
    return Evaluation(
        str(answer.get("metric") or ""),
        float(value) if isinstance(value, int | float) else None,
        at if isinstance(at, int) else None,
    )


def _offline(op: str, *paths: Path) -> str:
    """Standard output of the program that loads models.

    Raises:
        ConfigError: it says what is wrong with the model or the data.
        GossipError: it failed otherwise.
    """
    command = [sys.executable, "-m", "starling.node.engine.offline", op, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    if done.returncode == WRONG_INPUT:
        raise ConfigError(last)
    if done.returncode:
        raise GossipError(f"the model could not be loaded: {last}")
    return done.stdout


def _copy(source: Path, target: Path) -> None:
    """Under another name first: a full disk leaves no half model."""
    part = target.with_name(target.name + ".part")
    try:
        shutil.copyfile(source, part)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise GossipError(f"export: cannot write {target}: {error.strerror}; name another file") from error
