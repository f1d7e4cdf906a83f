"""`starling manifest show|check` and `starling config show`: what is set, with its meaning, and whether it can work."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from gossip.errors import ConfigError
from node.cli.output import dir_option, preset_option
from node.config import Manifest, NodeConfig

BUILT_IN_TASKS = ("digits", "images", "quadratic", "diagonal", "logistic", "text", "synthetic")
"""The names of `node.tasks.catalogue`, which only the engine may import: it needs torch."""


def check(manifest: Manifest) -> None:
    """Print what may not be meant on standard error.

    Raises:
        ConfigError: it cannot work, as far as can be told without torch. The engine checks the task's parameters.
    """
    from node import manifest as manifests

    kind = manifest.task.kind
    if ":" not in kind and kind not in BUILT_IN_TASKS:
        close = difflib.get_close_matches(kind, BUILT_IN_TASKS, n=1)
        raise ConfigError(
            f"task.kind: must be one of {', '.join(BUILT_IN_TASKS)} or module:function, got {kind!r}; "
            f"try `--set task={close[0] if close else 'digits'}`"
        )
    for warning in manifests.check(manifest):
        click.echo(f"note: {warning}", err=True)


@click.group()
def manifest() -> None:
    """Show or check a swarm's manifest."""


@manifest.command("show")
@click.argument("file", metavar="[MANIFEST.toml]", required=False, type=click.Path(path_type=Path))
@dir_option
def show_manifest(file: Path | None, run_dir: Path) -> None:
    """Print a manifest, every key with its meaning.

    The file's, or that of the node in --dir.
    """
    from node import manifest as manifests
    from node import presets, settings
    from node.run_dir import RunDir

    if file is not None:
        shown: Manifest | None = presets.load(Manifest, file)
    else:
        shown = RunDir.existing(run_dir).read_manifest()
    if shown is None:
        raise ConfigError(
            f"--dir: {run_dir} has no manifest yet, a member sends it; start the node with `starling run --dir {run_dir}`"
        )
    if shown.signature:
        manifests.verify(shown)
        click.echo(f"# swarm {manifests.swarm_id(shown)}, signature good")
    click.echo(settings.render(shown), nl=False)


@manifest.command("check")
@click.argument("file", metavar="MANIFEST.toml", type=click.Path(path_type=Path))
def check_manifest(file: Path) -> None:
    """Check a manifest file.

    Looks at keys, values, rules between them, and the signature if there is one. The task's parameters are checked by `found`.
    """
    from node import manifest as manifests
    from node import presets

    checked = presets.load(Manifest, file)
    try:
        check(checked)
        if checked.signature:
            manifests.verify(checked)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    signed = f"founded as {manifests.swarm_id(checked)}" if checked.signature else "not founded yet"
    click.echo(f"{file}: no error found, {signed}", err=True)


@click.group()
def config() -> None:
    """Show the effective settings."""


@config.command("show")
@click.argument("part", metavar="[manifest|node|scenario]", required=False)
@preset_option
@dir_option
def show_config(part: str | None, preset: str | None, run_dir: Path) -> None:
    """Print every setting with its meaning: those of the node in --dir, or the defaults where there is none.

    Two TOML files in one listing; name one part to get a file: starling config show manifest > manifest.toml

    scenario prints the defaults of what `starling simulate` reads. --preset prints a manifest, or scenario, that begins with those values.
    """
    from node import presets, settings
    from node.run_dir import RunDir
    from node.simulate.schema import Scenario

    if part not in {None, "manifest", "node", "scenario"}:
        raise ConfigError(f"config show: must be manifest, node or scenario, got {part!r}; try `starling config show`")
    if preset is not None and part == "node":
        raise ConfigError(
            f"--preset: is about a manifest or a scenario, got {part}; try `starling config show manifest --preset {preset}`"
        )
    if part == "scenario":
        begins = "defaults" if preset is None else f"preset {preset}"
        click.echo(f"# A scenario: what `starling simulate` reads ({begins})")
        click.echo(settings.render(presets.load(Scenario, assignments=presets.asked(preset, ()))), nl=False)
        return
    if preset is not None:
        begun = presets.load(Manifest, assignments=presets.asked(preset, ()))
        click.echo(f"# The manifest: what a swarm agrees on (preset {preset})")
        click.echo(settings.render(begun), nl=False)
        return
    place = RunDir(run_dir)
    held = place.config_file.exists()
    if part != "node":
        agreed = place.read_manifest() if held else None
        origin = (
            place.manifest_file
            if agreed is not None
            else "defaults; the swarm's own is not here yet"
            if held
            else "defaults"
        )
        click.echo(f"# The manifest: what a swarm agrees on ({origin})")
        click.echo(settings.render(agreed if agreed is not None else Manifest()), nl=False)
    if part is None:
        click.echo("")
    if part != "manifest":
        click.echo(f"# The node's own settings ({place.config_file if held else 'defaults'})")
        click.echo(settings.render(place.read_config() if held else NodeConfig()), nl=False)
