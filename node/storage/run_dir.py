"""The run directory: every file a node reads or writes, by name. Nothing is written outside of it.

node.toml          the volunteer's own settings (NodeConfig)
manifest.toml      the swarm's agreement; fetched on the first run after `join`
invite             swarm id and bootstrap addresses, for fetching the manifest; the node's own invitation where one is needed
issued/            invitations that this node has given out, by number
identity.key       Ed25519 private key
decisions.json     peers that this node or its owner banned or trusts
port, peers        the port that was picked and where members were, for the next run
revoked, ticket    invitations known to be void, and the last proof of work, for the next run
final.json         how the last run ended, with the node's last status (`starling.node.status.final`)
start.safetensors  in a swarm of scripts: the model that all nodes begin with, which this node has or fetched, and sends to others
start.part         the same while it is received (`starling.node.storage.start_file`)
model-*.part       a model being received, until the engine has it
state.part         chunks received of a swarm's model, until it is whole (`starling.node.daemon.state.partial`)
format             version of this directory as a whole, from 2 on; see `starling.node.versions`
checkpoint.safetensors, best.safetensors, model.safetensors, control.sock, log.jsonl, record.jsonl, output.log

A directory that a node makes has mode 0700 and its files 0600.
"""

from contextlib import suppress
from pathlib import Path
from typing import Self

import base58
import msgspec

from starling.gossip.errors import ConfigError
from starling.gossip.wire.schema import Revocation
from starling.node.admission import invite as invites
from starling.node.admission import issue
from starling.node.admission.chain import Chain
from starling.node.admission.credential import Ticket
from starling.node.admission.invite import Invite
from starling.node.admission.revocations import MAX_HELD
from starling.node.config import manifest as manifests
from starling.node.config import toml
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.status import demo_folder, final
from starling.node.status.control import typed
from starling.node.status.final import FinalStatus
from starling.node.storage import private
from starling.node.storage.bans import decode, encode
from starling.node.versions import RUN_DIRECTORY, unreadable
from starling.robust.reputation import Decision


def check_holds_node(path: Path, key: str = "--dir", *, or_demo: bool = False) -> None:
    """Check that a path is the run directory of a node, whatever its version; with `or_demo` a demo's folder is accepted too.

    Raises:
        ConfigError: it is not; one line that names `key`, what is there instead and the next command.
    """
    start = "start one with `starling create MANIFEST.toml` or `starling join INVITE`"
    try:
        if (path / "node.toml").exists():
            return
        nodes = demo_folder.nodes(path) if path.is_dir() else {}
        if nodes and or_demo:
            return
        if nodes:
            first = typed(next(iter(nodes.values())))
            fault = f"{path} is the folder of a demo; name one of its nodes, as in `starling status --dir {first}`"
        elif path.is_dir():
            fault = f"{path} holds no node, as there is no node.toml in it; {start}"
        elif path.exists():
            fault = f"{path} is a file, not the directory of a node; {start}"
        else:
            fault = f"{path} does not exist; name the directory of a node, or {start}"
    except OSError as error:  # a folder of another user, or a name that no file can have
        fault = f"{path} cannot be read: {error.strerror}; look with `ls -ld {typed(path)}`"
    raise ConfigError(f"{key}: {fault}")


class RunDir:
    """Paths in one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "node.toml"
        self.manifest_file = path / "manifest.toml"
        self.invite_file = path / "invite"
        self.issued_folder = path / "issued"
        self.key = path / "identity.key"
        self.checkpoint = path / "checkpoint.safetensors"
        self.model = path / "model.safetensors"  # the model alone, exported when the run is finished
        self.partial = path / "state.part"
        self.start = path / "start.safetensors"  # initial model of a swarm of scripts
        self.best = path / "best.safetensors"  # the model with the best evaluation so far; `starling.node.engine.best`
        self.output = path / "output.log"  # printed by a demo's node
        self._decisions_file = path / "decisions.json"
        self._final_file = path / final.FINAL_NAME
        self._peers_file = path / "peers"
        self._port_file = path / "port"
        self._revoked_file = path / "revoked"
        self._ticket_file = path / "ticket"

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make the directory if it is missing. Raises ConfigError: it cannot be made or is a file."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--dir: {path} cannot be used: {error.strerror}; name another with --dir") from error
        run_dir = cls(path.resolve())
        run_dir.check_format()
        return run_dir

    @classmethod
    def existing(cls, path: Path) -> Self:
        """Return a directory that holds a node. Raises ConfigError: it does not, or a later version wrote it."""
        check_holds_node(path)
        run_dir = cls(path.resolve())
        run_dir.check_format()
        return run_dir

    @property
    def format(self) -> int | str:
        """Return the directory's version: 1 if no file gives another; the file's text if that is no number."""
        try:
            text = (self.path / "format").read_bytes()[:64].decode(errors="replace").strip()
        except OSError:
            return 1
        return int(text) if text.isdecimal() and len(text) < 7 else text

    def check_format(self) -> None:
        """Raise ConfigError if a later version wrote this directory and declares that its files have another meaning."""
        if self.format not in RUN_DIRECTORY:
            raise ConfigError("--dir: " + unreadable(f"{self.path} is", self.format, RUN_DIRECTORY, "name another"))

    def with_kept_port(self, listen: tuple[str, ...]) -> tuple[str, ...]:
        """`listen` with port 0 replaced by the one that was picked in an earlier run, if there was one."""
        try:
            port = int(self._port_file.read_text())
        except (OSError, ValueError):
            return listen
        return tuple(f"{it.removesuffix('/0')}/{port}" if it.endswith("/tcp/0") else it for it in listen)

    def keep_port(self, addresses: tuple[str, ...]) -> None:
        """Remember the port of our first address; a directory that cannot be written is no reason to stop."""
        if addresses:
            with suppress(ConfigError):
                self._write(self._port_file, addresses[0].split("/tcp/")[1].split("/")[0] + "\n")

    def keep_decisions(self, kept: tuple[Decision, ...]) -> None:
        """Store bans and trust. Raises ConfigError: the file cannot be written."""
        self._write(self._decisions_file, encode(kept))

    def known_decisions(self) -> tuple[Decision, ...]:
        """Bans and trust of earlier runs. Raises ConfigError: the file is damaged; without it all bans would end."""
        path = self._decisions_file
        try:
            return decode(path.read_text()) if path.exists() else ()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {error}; move it away with `mv {path} {path}.bad`, which ends all bans") from error

    def remember_peers(self, addresses: tuple[str, ...]) -> None:
        """Store addresses of members for the next run."""
        with suppress(ConfigError):
            self._write(self._peers_file, "".join(f"{address}\n" for address in addresses))

    def known_peers(self) -> tuple[str, ...]:
        """Addresses of members at the end of the last run."""
        try:
            return tuple(self._peers_file.read_text().split())[:64]
        except (OSError, UnicodeDecodeError):
            return ()

    def keep_revoked(self, revocations: tuple[Revocation, ...]) -> None:
        """Store revocations for the next run."""
        lines = (base58.b58encode(msgspec.msgpack.encode(each)).decode() for each in revocations)
        with suppress(ConfigError):
            self._write(self._revoked_file, "".join(f"{line}\n" for line in lines))

    def known_revoked(self) -> tuple[Revocation, ...]:
        """Revocations known at the end of the last run; they are verified again before use."""
        try:
            lines = self._revoked_file.read_text().split()[:MAX_HELD]
            return tuple(msgspec.msgpack.decode(base58.b58decode(line), type=Revocation) for line in lines)
        except (OSError, ValueError, msgspec.MsgspecError):
            return ()

    def issued(self) -> dict[int, Chain]:
        """Return the invitations that this node has given, by number. Raises OSError: the folder cannot be read."""
        try:
            return issue.given(self.issued_folder)
        except FileNotFoundError:
            return {}

    def keep_ticket(self, ticket: Ticket) -> None:
        """Keep a proof of work, for a restart within its time."""
        with suppress(ConfigError):
            self._write(self._ticket_file, f"{ticket.epoch} {ticket.nonce}\n")

    def known_ticket(self) -> Ticket | None:
        """Return the last proof of work; it is checked again before it is shown."""
        try:
            epoch, nonce = self._ticket_file.read_text()[:64].split()
            return msgspec.convert((int(epoch), int(nonce)), type=Ticket)
        except (OSError, ValueError):
            return None

    def keep_final(self, status: FinalStatus) -> None:
        """Write final.json; a directory that cannot be written is no reason to fail at the end."""
        with suppress(ConfigError):
            self._write(self._final_file, final.encode(status))

    def last_final(self) -> FinalStatus | None:
        """Return how the last run ended; None if it is not known, or the file is damaged."""
        with suppress(ValueError):
            return final.load(self.path)
        return None

    def drop_final(self) -> None:
        """Remove final.json, so that it is not taken for the result of the run that begins, should that be killed."""
        with suppress(OSError):
            self._final_file.unlink(missing_ok=True)

    def write_config(self, config: NodeConfig) -> None:
        """Store the volunteer's settings."""
        self._write(self.config_file, toml.to_toml(config))

    def keep_stage(self, stage: int) -> None:
        """Store the stage of a crew that this node has from now on, as its setting. Raises ConfigError: the file cannot be written."""
        self.write_config(msgspec.structs.replace(self.read_config(), stage=stage))

    def read_config(self) -> NodeConfig:
        """Return the volunteer's settings. Raises ConfigError: the file is missing or wrong."""
        return toml.load(self.config_file, NodeConfig)

    def write_manifest(self, manifest: Manifest) -> str:
        """Store the manifest and return the swarm id."""
        self._write(self.manifest_file, toml.to_toml(manifest))
        return manifests.swarm_id(manifest)

    def read_manifest(self) -> Manifest | None:
        """Return the manifest, verified; None if it is not here yet. Raises ConfigError: the file is wrong or its signature is."""
        if not self.manifest_file.exists():
            return None
        manifest = toml.load(self.manifest_file, Manifest)
        manifests.verify(manifest)
        return manifest

    def write_invite(self, invite: Invite) -> None:
        """Store the invite."""
        self._write(self.invite_file, invites.encode(invite) + "\n")

    def read_invite(self) -> Invite | None:
        """Return the invite; None for the creator. Raises ConfigError: it is damaged or cannot be read."""
        try:
            text = self.invite_file.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(f"invite: {self.invite_file} cannot be read: {why}; {self._fresh_invite()}") from error
        if not text.strip():
            raise ConfigError(f"invite: {self.invite_file} is empty; {self._fresh_invite()}")
        try:
            return invites.decode(text)
        except ConfigError as error:
            raise ConfigError(str(error).replace("invite: ", f"invite: {self.invite_file} ", 1)) from error

    def _fresh_invite(self) -> str:
        return f"ask a member for a fresh one: `starling join INVITE --dir {typed(self.path)}`"

    def swarm(self) -> str:
        """Return the id of the swarm this node belongs to, "" if none is written down.

        Raises ConfigError: the manifest or the invite is damaged.
        """
        manifest = self.read_manifest()
        if manifest is not None:
            return manifests.swarm_id(manifest)
        invite = self.read_invite()
        return invite.swarm if invite is not None else ""

    def last_words(self) -> str:
        """Return the last line the node printed, for an error message."""
        try:
            lines = self.output.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else f"it printed nothing; see {self.path}"

    def _write(self, path: Path, text: str) -> None:
        try:
            private.replace(path, text.encode())
        except OSError as error:
            raise ConfigError(f"--dir: cannot write {path}: {error.strerror}; name another with --dir") from error
