"""`starling manifest show|check` and `starling config show`: print settings with their meaning, and check them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from starling.gossip.errors import ConfigError
from starling.node.cli.common import DEFAULT_DIR, PATH, dir_and_json, emit, json_option, preset_option, say
from starling.node.cli.completion import RunDirectory
from starling.node.cli.help import Group
from starling.node.config.parts import PartSection, Section
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.status.control import typed

if TYPE_CHECKING:
    from starling.node.storage.run_dir import RunDir

PARTS = ("manifest", "node", "scenario")
_ADVICE = re.compile(r"`--set ([^`]+)`")


def check(manifest: Manifest) -> None:
    """Check settings, and print warnings on standard error.

    Raises ConfigError: it cannot work, as far as that is known without torch or anyone's code.
    """
    from starling.node.config import manifest as manifests
    from starling.node.config import maturity, memory

    for each in maturity.experimental(manifest):
        say(f"note: {each} is experimental: it may change, or go, without notice")
    for warning in (*manifests.check(manifest), memory.objection(manifest, memory.available())):
        if warning:
            say(f"note: {warning}")


@click.group(cls=Group)
def manifest() -> None:
    """Show or check a swarm's manifest."""


@manifest.command(
    "show",
    examples=(
        ("starling manifest show starling-node", "what the node in that directory agreed to"),
        ("starling manifest show examples/digits.toml", "a file with every default filled in"),
    ),
)
@click.argument("file", metavar="[MANIFEST.toml|DIR]", required=False, type=PATH)
@click.option("--dir", "run_dir", metavar="DIR", type=RunDirectory(), default=DEFAULT_DIR, help="The node's run directory.")
@json_option
def show_manifest(file: Path | None, run_dir: Path, as_json: bool) -> None:
    """Print a manifest, every key with its meaning.

    A file's, or that of the node in DIR.
    """
    from starling.node.cli.documents import ShownManifest
    from starling.node.config import manifest as manifests
    from starling.node.config import presets, toml
    from starling.node.storage.run_dir import RunDir

    if file is not None and not file.is_dir():
        shown: Manifest | None = presets.load(Manifest, file)
    else:
        run_dir = file or run_dir
        shown = RunDir.existing(run_dir).read_manifest()
    if shown is None:
        raise ConfigError(
            f"--dir: {run_dir} has no manifest yet, a member sends it; start the node with `starling run --dir {typed(run_dir)}`"
        )
    swarm = None
    if shown.signature:
        manifests.verify(shown)
        swarm = manifests.swarm_id(shown)
    if as_json:
        emit(ShownManifest(swarm=swarm, manifest=msgspec.to_builtins(shown)))
        return
    if swarm is not None:
        click.echo(f"# swarm {swarm}, signature good")
    click.echo(toml.render(shown), nl=False)


@manifest.command("check", examples=(("starling manifest check examples/digits.toml", "before you create a swarm"),))
@click.argument("file", metavar="MANIFEST.toml|DIR", type=PATH)
@click.option("--trust", is_flag=True, help="Import each module:name that the manifest names, which runs its code here.")
def check_manifest(file: Path, trust: bool) -> None:
    """Check a manifest file, or that of the node in DIR.

    Checks keys, values, rules between them and the signature if there is one. With --trust also that each `module:name` can be imported
    here and takes its keys. A whole task is checked by `starling task check`.
    """
    from starling.node.config import manifest as manifests
    from starling.node.config import parts, presets
    from starling.node.storage.run_dir import RunDir

    if file.is_dir():
        file = RunDir.existing(file).manifest_file
    try:
        checked = presets.load(Manifest, file)
    except ConfigError as error:
        raise _to_correct(error) from error
    try:
        check(checked)
        if checked.signature:
            manifests.verify(checked)
        for key, name in parts.names(checked).items():
            where, _, part = key.partition(".")
            section = getattr(checked, where)
            if ":" in name and not trust:
                say(f"note: {key}: {name} is not imported, as that would run its code; `--trust` imports and checks it")
            elif ":" in name or (part in section.PARTS and parts.catalogue_of(section, part).keys_of(name) is None):
                _import(key, section)
    except ConfigError as error:
        raise _to_correct(ConfigError(f"{file}: {error}")) from error
    signed = f"created as {manifests.swarm_id(checked)}" if checked.signature else "not created yet"
    say(f"{file}: no error found, {signed}")


def _to_correct(error: ConfigError) -> ConfigError:
    """Return an error whose advice is about the file itself, as checking one takes no `--set`."""
    return ConfigError(_ADVICE.sub(lambda advice: ", ".join(f"`{each}`" for each in advice[1].split(" --set ")), str(error)))


def _import(key: str, section: PartSection) -> None:
    """Import the part that `key` names in a separate process. Raises ConfigError: that fails, or a key of its section is wrong."""
    given = msgspec.json.encode(section).decode()
    command = [sys.executable, "-P", "-m", "starling.node.engine.user_code", str(Path.cwd()), key, given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError((done.stderr.strip().splitlines() or [f"{key}: importing failed"])[-1])


@click.group(cls=Group)
def config() -> None:
    """Show the effective settings."""


@config.command(
    "show",
    short_help="Print every setting with its meaning.",
    examples=(
        ("starling config show", "every key of both files, with its meaning"),
        ("starling config show manifest --preset open > m.toml", "a file to begin with, for a swarm of strangers"),
        ("starling config show node --dir starling-node --json", "a node's own settings, for a program"),
    ),
)
@click.argument(
    "part",
    metavar="[manifest|node|scenario]",
    required=False,
    shell_complete=lambda _c, _p, begun: [part for part in PARTS if part.startswith(begun)],
)
@preset_option
@dir_and_json
def show_config(part: str | None, preset: str | None, run_dir: Path, as_json: bool) -> None:
    """Print every setting with its meaning: those of the node in --dir; the defaults without --dir, unless
    starling-node holds a node.

    Two TOML files in one listing; name one part to get a file: starling config show manifest > manifest.toml

    scenario prints the defaults of what `starling simulate` reads. --preset prints a manifest, or scenario, that begins with those values.
    """
    from starling.node.cli.documents import ShownConfig
    from starling.node.config import toml
    from starling.node.storage.run_dir import RunDir, check_holds_node

    if part not in {None, *PARTS}:
        raise ConfigError(f"config show: must be manifest, node or scenario, got {part!r}; try `starling config show`")
    if preset is not None and part == "node":
        raise ConfigError(f"--preset: is about a manifest or a scenario, got {part}; try `starling config show manifest --preset {preset}`")
    parts = [part] if part else ["manifest"] if preset else ["manifest", "node"]
    if run_dir != DEFAULT_DIR:  # the person named a directory: showing defaults instead would mislead
        check_holds_node(run_dir)
    place = RunDir(run_dir)
    of_node = part != "scenario" and preset is None and place.config_file.exists()
    listing = _Listing(place if of_node else None, preset)
    sections = {"scenario": listing.scenario, "manifest": listing.manifest, "node": listing.node}
    shown = {name: sections[name]() for name in parts}
    if as_json:
        emit(ShownConfig(**{name: msgspec.to_builtins(section) for name, (_, section) in shown.items()}))
    else:
        texts = (f"# {heading}\n{toml.render(section)}" for heading, section in shown.values())
        click.echo("\n".join(texts), nl=False)


@dataclass(frozen=True, slots=True)
class _Listing:
    """Sections with their headings: those of a node, or the defaults with a preset's values."""

    place: RunDir | None
    preset: str | None

    @property
    def begins(self) -> str:
        """Return where values come from that a node does not set."""
        return "defaults" if self.preset is None else f"preset {self.preset}"

    def scenario(self) -> tuple[str, Section]:
        """Return the sections of what is simulated."""
        from starling.node.config import presets
        from starling.node.simulate.schema import Scenario

        heading = f"A scenario: what `starling simulate` reads ({self.begins})"
        return heading, presets.load(Scenario, assignments=presets.asked(self.preset, ()))

    def manifest(self) -> tuple[str, Section]:
        """Return the sections that a swarm agrees on."""
        from starling.node.config import presets

        agreed = None if self.place is None else self.place.read_manifest()
        origin = self.begins if self.place is None else "defaults; the swarm's own is not here yet"
        if self.place is not None and agreed is not None:
            origin = str(self.place.manifest_file)
        heading = f"The manifest: what a swarm agrees on ({origin})"
        return heading, agreed or presets.load(Manifest, assignments=presets.asked(self.preset, ()))

    def node(self) -> tuple[str, Section]:
        """Return the node's own settings."""
        if self.place is None:
            return "The node's own settings (defaults)", NodeConfig()
        return f"The node's own settings ({self.place.config_file})", self.place.read_config()
