"""A node of this machine, observed and controlled from outside: `starling.attach(dir)`, and most commands of the command line.

Works on a running node through its control socket, and on one that has ended through the files it left behind. Torch-free: models
are loaded by a program of their own (`starling.node.engine.offline`).
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from starling.gossip.errors import ConfigError, GossipError
from starling.gossip.wire.schema import MAX_ADDRESSES
from starling.node.admission import invite as invites
from starling.node.admission import issue
from starling.node.admission.chain import terms_of
from starling.node.config import manifest as manifests
from starling.node.identity import Identity
from starling.node.status import card as cards
from starling.node.status import control, final
from starling.node.status.control import typed
from starling.node.status.record import RECORD_NAME, load
from starling.node.status.snapshot import StatusSnapshot
from starling.node.storage.run_dir import RunDir

Form = Literal["safetensors", "torch", "hf", "peft", "onnx"]
SUFFIXES: Mapping[Form, str] = {"safetensors": ".safetensors", "torch": ".pt", "onnx": ".onnx"}
FOLDERS: tuple[Form, ...] = ("hf", "peft")  # formats that are folders

LEAVE_S = 5.0  # seconds from a request to leave to the end of the process
DAYS = 90.0  # days for which an invitation is valid
TOKENS, TEMPERATURE = 200, 0.8  # defaults for text that a model generates
WRONG_INPUT = 2  # exit code of a program that was given something impossible
FAILED = 3  # exit code of one that says in its last line why it failed; 1 is Python's own


class Evaluation(msgspec.Struct, frozen=True, tag_field="version", tag=1):
    """A model's result on held-out data; what `starling eval --json` prints."""

    metric: str
    """accuracy, bits_per_byte, error …"""
    value: float | None
    """Mean over the held-out samples; null if nothing was measured yet."""
    round: int | None
    """Rounds that the model had done."""
    others: dict[str, float | None] = msgspec.field(default_factory=dict)
    """Further metrics by name."""


class Written(msgspec.Struct, frozen=True, tag_field="version", tag=1):
    """Text that a model wrote, as `starling ask --json` prints it."""

    prompt: str
    text: str
    """What follows the prompt."""
    tokens: int
    """Of `text`."""
    round: int | None
    """Rounds that the model had done."""


class Invited(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """An invite; what `starling invite --json` prints."""

    invite: str
    """The line that others join by."""
    swarm: str
    bootstrap: tuple[str, ...]
    """Addresses in it."""
    number: int | None = None
    """Of the invitation, for `starling revoke`; null where members need none."""
    until: str | None = None
    """The day it ends, YYYY-MM-DD."""
    peer: str | None = None
    """The only peer that can use it; null: the first that does."""
    left: int | None = None
    """Invitations this node has still to give; null: as many as it likes."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, tag_field="version", tag=1):
    """A node's current limits, as keys of its settings, as `starling limits --json` prints them."""

    up_bytes_per_s: int
    """Cap on what is sent; 0 is none."""
    down_bytes_per_s: int
    """Cap on what is received; 0 is none."""
    threads: int
    """Torch threads of local steps; 0: as many as are fastest at present."""


class Attached:
    """The node in a run directory, running or ended. No connection stays open between calls.

    Args:
        run_dir: as given to `starling create`, `join` or `run`.

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
        """Tell if a node's control socket accepts connections."""
        try:
            control.connect(self.run_dir).close()
        except control.NotRunning:
            return False
        return True

    @property
    def last(self) -> final.FinalStatus | None:
        """Return how the last run ended; None if it still runs, was killed, or never ran.

        Raises:
            GossipError: the file that says so is damaged.
        """
        try:
            return final.load(self.run_dir)
        except ValueError as error:
            raise GossipError(f"{error}; start the node with `starling run --dir {typed(self.run_dir)}`") from error

    def ask(self, op: str, **fields: Any) -> dict[str, object]:
        """Send one request to the running node (see node.status.control); return the fields of its answer."""
        try:
            return control.request(self.run_dir, op, **fields)
        except control.NotRunning:
            RunDir.existing(self.run_dir)
            raise

    def status(self) -> StatusSnapshot:
        """Return the node's status now, or its last one if it has ended."""
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

    def snapshots(self) -> Iterator[StatusSnapshot]:
        """Yield snapshots of a running node as they come, else those of its record, or its last one. `starling.scalars` makes
        points of them.

        Raises:
            GossipError: the record is damaged.
        """
        if self.running:
            yield from Attached.__iter__(self)
        elif (record := self.run_dir / RECORD_NAME).exists():
            try:
                yield from load(record)
            except ValueError as error:
                raise GossipError(str(error)) from error
        else:
            yield self.status()

    def evaluate(self, data: str | Path | None = None) -> Evaluation:
        """Evaluate the current model.

        Args:
            data: a file or folder in the task's form: its test split is used, or all of an .npz file without one. Default: the
                task's held-out data.
        """
        if data is None:
            try:
                return msgspec.convert(self.ask("evaluate"), Evaluation)
            except control.NotRunning:
                last = None if self.last is None else self.last.snapshot
                if last is not None and last.value is not None and last.value_round == last.round:
                    return Evaluation(last.metric, last.value, last.value_round, dict(last.others))
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model.safetensors"
            self._exported(model)  # otherwise it is made in the process that evaluates it, so that torch starts once
            answer = _offline("evaluate", self.run_dir, model, *([] if data is None else [data]))
            return msgspec.json.decode(answer, type=Evaluation)

    def export(self, file: str | Path, *, format: Form = "safetensors", card: bool = False, best: bool = False) -> None:
        """Write the model; an existing file is replaced, files in an existing folder too.

        Args:
            file: a file, or for hf and peft a folder.
            format: of Starling itself (safetensors), a state_dict (torch), a folder of transformers (hf) or peft, or onnx.
            card: write a model card next to it, FILE.md; hf and peft folders always have one, README.md.
            best: the model with the best evaluation so far, not that of now.

        Raises:
            ConfigError: the model has no such format, a package is missing, or none was evaluated yet.
            GossipError: it cannot be written.
        """
        target = Path(file).absolute()
        if format == "safetensors":
            if not self._exported(target, best=best):
                _offline("export", self.run_dir, target)
        else:
            with tempfile.TemporaryDirectory() as folder:
                model = Path(folder) / "model.safetensors"
                self._exported(model, best=best)  # otherwise it is made in the process that converts it, so that torch starts once
                _offline("convert", self.run_dir, model, format, target)
        if card or format in FOLDERS:
            page = target / "README.md" if format in FOLDERS else target.with_suffix(".md")
            try:
                page.write_text(self._card(target.stem, format, best=best))
            except OSError as error:
                raise GossipError(f"export: cannot write {page}: {error.strerror}") from error

    def write(self, prompt: str, *, tokens: int = TOKENS, temperature: float = TEMPERATURE, seed: int = 0, best: bool = False) -> Written:
        """Let a text model continue a prompt. Its program takes seconds to start; training continues meanwhile.

        Args:
            prompt: at most as many tokens (bytes, without a tokenizer) as the model looks back.
            tokens: to write, > 0.
            temperature: 0 takes the likeliest each time, 1 draws by the model's probabilities; >= 0.
            seed: of what is drawn.
            best: by the model with the best evaluation so far, not that of now.

        Raises:
            ConfigError: the task does not write text, or the prompt is empty or too long.
        """
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model.safetensors"
            self._exported(model, best=best)  # otherwise it is made in the process that uses it, so that torch starts once
            request = {"prompt": prompt, "tokens": tokens, "temperature": temperature, "seed": seed}
            return msgspec.json.decode(_offline("ask", self.run_dir, model, json.dumps(request)), type=Written)

    def _card(self, name: str, form: str, *, best: bool) -> str:
        manifest = RunDir(self.run_dir).read_manifest()
        assert manifest is not None  # there is a model
        try:
            status = self.status()
        except control.ControlError:
            status = None
        swarm = manifests.swarm_id(manifest)
        if best and status is not None:
            status = msgspec.structs.replace(status, round=status.best_round or 0, value=status.best, value_round=status.best_round)
        return cards.card(name, swarm=swarm, task=manifest.task.kind, form=form, status=status)

    def _exported(self, target: Path, *, best: bool = False) -> bool:
        """Write the model without loading it; False where only a checkpoint has it."""
        try:
            self.ask("export", path=str(target), best=best)
        except control.NotRunning:
            place, last = RunDir(self.run_dir), self.last
            if best:
                if not place.best.exists():
                    raise ConfigError(
                        f"--best: {self.run_dir} has no evaluated model yet; leave --best out for that of the last checkpoint"
                    ) from None
                _copy(place.best, target)
                return True
            finished = last is not None and last.ended == "finished"
            if place.checkpoint.exists() and not (finished and place.model.exists()):
                return False
            if not place.model.exists():
                raise
            _copy(place.model, target)
        return True

    def invite(self, *, days: float = DAYS, peer: str = "") -> str:
        """Return a line by which others join the swarm; `days` and `peer` as for `make_invite`."""
        return self.invited(days=days, peer=peer).invite

    def invited(self, *, days: float = DAYS, peer: str = "") -> Invited:
        """Invite as `invite` does, and return the contents of the line too."""
        status = self.status()
        if not status.addresses:
            raise GossipError(f"the node in {self.run_dir} does not listen yet; try again in a moment")
        bootstrap = status.bootstrap or status.addresses
        return make_invite(RunDir(self.run_dir), status.swarm, bootstrap, days=days, peer=peer)

    def pause(self) -> None:
        """Do no local steps from the next round on, until `resume` or the node's end; peers are still answered.

        Raises:
            GossipError: it does not train yet.
        """
        self.ask("pause")

    def resume(self) -> None:
        """Do local steps again after `pause`. Raises as that."""
        self.ask("resume")

    def limits(self, *, keep: bool = False, **changed: int) -> Limits:
        """Change the running node's limits until it ends; return the current ones.

        Args:
            keep: also write all that is in force to the node's settings, for later runs.
            changed: `up_bytes_per_s`, `down_bytes_per_s` (0: no cap), `threads` (0: as many as are fastest); others stay as they are.

        Raises:
            GossipError: it is still starting, or a value is refused.
        """
        now = msgspec.convert(self.ask("limits", **changed), Limits)
        if keep:
            place = RunDir.existing(self.run_dir)
            place.write_config(msgspec.structs.replace(place.read_config(), **msgspec.structs.asdict(now)))
        return now

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


def make_invite(place: RunDir, swarm: str, addresses: tuple[str, ...], *, days: float = DAYS, peer: str = "") -> Invited:
    """Return the line to join by, with an invitation of so many days where the swarm asks for one, numbered in the inviter's directory.

    The inviter and others can be dialled at `addresses`; the first eight are used. `peer` is the only one that can use the invitation; "":
    the first who does.

    Raises:
        ConfigError: the node may not invite, has no invitation left, or the swarm asks for none.
    """
    bootstrap = addresses[:MAX_ADDRESSES]
    manifest = place.read_manifest()
    if manifest is None or manifest.admission.kind != "invite":
        if peer or (manifest is not None and days != DAYS):
            raise ConfigError(f"--{'for' if peer else 'days'}: this swarm takes members without invitation; `starling invite` is enough")
        return Invited(invite=invites.encode(invites.Invite(swarm, bootstrap)), swarm=swarm, bootstrap=bootstrap)
    me = Identity.load_or_create(place.key)
    issued = issue.give(
        place.issued_folder,
        terms_of(manifest, swarm),
        me,
        issue.take_up(place.read_invite(), me),
        bootstrap,
        days=days,
        now_s=time.time(),
        peer=peer,
    )
    return Invited(
        invite=invites.encode(issued.invite),
        swarm=swarm,
        bootstrap=bootstrap,
        number=issued.number,
        until=f"{issued.until:%Y-%m-%d}",
        peer=peer or None,
        left=issued.left,
    )


def _offline(op: str, *paths: str | Path) -> str:
    """Standard output of the program that loads models."""
    command = [sys.executable, "-m", "starling.node.engine.offline", op, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    if done.returncode == WRONG_INPUT:
        raise ConfigError(last)
    if done.returncode == FAILED:
        raise GossipError(last)
    if done.returncode:
        raise GossipError(f"the model could not be loaded: {last}")
    return done.stdout


def _copy(source: Path, target: Path) -> None:
    """Copy under a temporary name first, so that a full disk leaves no partial model."""
    part = target.with_name(target.name + ".part")
    try:
        shutil.copyfile(source, part)
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise GossipError(f"export: cannot write {target}: {error.strerror}; name another file") from error
