"""Check what this version can read of another version's files: `starling upgrade-check`. Reads, changes nothing, starts nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from starling.gossip.errors import ConfigError
from starling.node.admission import invite as invites
from starling.node.config import manifest as manifests
from starling.node.config import toml
from starling.node.config.schema import FORMAT, Manifest
from starling.node.identity import Identity
from starling.node.status import final
from starling.node.status.check import Check
from starling.node.status.record import MAX_LINE_BYTES, RECORD_NAME
from starling.node.status.snapshot import decode
from starling.node.storage.run_dir import RunDir, check_holds_node
from starling.node.versions import CHECKPOINT, MANIFEST, RUN_DIRECTORY, UPGRADE, unreadable

MAX_HEADER_BYTES = 64 << 20
_WRONG = "`starling doctor --dir {path}` says more"


def of_manifest(path: Path) -> Check:
    """Check a manifest, created or not."""
    try:
        raw = toml.read(path)
    except ConfigError as error:
        return Check("manifest", "fail", str(error))
    version = raw.get("format", FORMAT)
    if version not in MANIFEST:
        return Check("manifest", "fail", unreadable(f"{path} is", version, MANIFEST, "it was damaged"), f"`{UPGRADE}`")
    try:
        manifest = toml.load(path, Manifest)
        if manifest.signature:
            manifests.verify(manifest)
    except ConfigError as error:
        return Check("manifest", "fail", str(error), f"if a later version wrote it, `{UPGRADE}`")
    swarm = f", of swarm {manifests.swarm_id(manifest)}" if manifest.signature else ", not created yet"
    return Check("manifest", "ok", f"format {version}{swarm}; an upgrade keeps it, and the swarm id")


def of_directory(path: Path) -> Iterator[Check]:
    """Check a run directory, with a line for every file that has a version. Raises ConfigError: it holds no node."""
    check_holds_node(path, "DIR|MANIFEST")
    run_dir = RunDir(path)
    if run_dir.format not in RUN_DIRECTORY:
        yield Check("run directory", "fail", unreadable(f"{path} is", run_dir.format, RUN_DIRECTORY, "it was damaged"), f"`{UPGRADE}`")
        return
    yield Check("run directory", "ok", f"format {run_dir.format}")
    yield _tried("settings", run_dir.read_config, "node.toml is read as it is", path)
    if run_dir.key.exists():
        yield _tried("identity", lambda: Identity.load_or_create(run_dir.key), "the key, and so the peer id, stays", path)
    if run_dir.manifest_file.exists():
        yield of_manifest(run_dir.manifest_file)
    if run_dir.invite_file.exists():
        yield _tried("invite", run_dir.read_invite, f"is read as it is; versions 1 to {_newest_invite()}", path)
    for file in (run_dir.checkpoint, run_dir.checkpoint.with_name(run_dir.checkpoint.name + ".previous"), run_dir.best):
        if file.exists():
            yield of_tensors(file)
    yield _tried("decisions", run_dir.known_decisions, "bans and trust are read as they are", path)
    if (record := path / RECORD_NAME).exists():
        yield _of_record(record)
    if (path / final.FINAL_NAME).exists():
        yield _tried("final.json", lambda: final.load(path), "is read as it is, and replaced when the node ends", path)


def of_tensors(path: Path) -> Check:
    """Check a checkpoint or model by its header; the tensors are not read."""
    name = path.name
    try:
        version = _format_of(path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Check(
            name, "fail", "cut short, or not written by Starling", f"move it away: `mv {path} {path}.bad`; the node goes on without"
        )
    if version in CHECKPOINT:
        return Check(name, "ok", f"format {version}; training goes on from it")
    if isinstance(version, int) and version > CHECKPOINT.newest:
        return Check(name, "fail", unreadable("is", version, CHECKPOINT, ""), f"`{UPGRADE}`")
    return Check(
        name,
        "fail",
        unreadable("is", version, CHECKPOINT, "a later version than that wrote it"),
        "with the version that wrote it: `starling export`; then begin from that file, `start=FILE`",
    )


def summary(checks: tuple[Check, ...], *, running: bool) -> Check:
    """Return the last line: what an upgrade changes, and what to do now."""
    worst = {check.verdict for check in checks}
    if "fail" in worst:
        return Check("upgrade", "fail", "something cannot be read by this version; nothing was changed", "see above")
    if "warn" in worst:
        return Check("upgrade", "warn", "something cannot be read and is not needed; nothing was changed", "see above")
    again = "; restart the node, which still runs the version it was started with" if running else ""
    return Check("upgrade", "ok", f"all of it is read as it is, and nothing is rewritten{again}", "`starling run`, docs/upgrade.md")


def _tried(name: str, read: Callable[[], object], fine: str, path: Path) -> Check:
    try:
        read()
    except (ConfigError, ValueError) as error:
        return Check(name, "fail", str(error), _WRONG.format(path=path) if UPGRADE not in str(error) else f"`{UPGRADE}`")
    return Check(name, "ok", fine)


def _of_record(path: Path) -> Check:
    try:
        with path.open("rb") as file:
            line = file.readline(MAX_LINE_BYTES + 1)
        decode(line)
    except (OSError, ValueError) as error:
        return Check(path.name, "warn", str(error), f"`mv {path} {path}.old`; a node does not need it")
    return Check(path.name, "ok", "is read as it is, and goes on")


def _newest_invite() -> int:
    return int(invites.INVITED.removeprefix("starling").removesuffix(":"))


def _format_of(path: Path) -> object:
    """Return the format in the header of a tensor file, without torch."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MAX_HEADER_BYTES:
            raise ValueError("no header")
        header = msgspec.json.decode(file.read(length))
    return json.loads(header["__metadata__"]["starling"])["format"]
