"""Pages of the documentation site that are made from the code: commands, settings, parts, metrics, Python API, schemas, examples.

`tools/site.py` calls `pages()` on every build, so that none of them is in the repository or can be out of date.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
import tomli_w
from prometheus_client.parser import text_string_to_metric_families

import starling
from starling.node.catalogues import TRAINERS
from starling.node.cli.main import EXIT_CODES, GROUPS
from starling.node.cli.main import starling as program
from starling.node.config import maturity, toml
from starling.node.config.parts import KINDS, PartSection, Section, allowed
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.simulate.schema import Scenario
from starling.node.status import metrics as exported
from starling.node.status.snapshot import VERSION, PeerStatus, Resources, StatusSnapshot

ROOT = Path(__file__).parents[1]


def pages() -> Mapping[str, str]:
    """Return path below docs/ -> Markdown."""
    return {
        "reference/cli.md": cli(),
        "reference/manifest.md": settings("The manifest: what a swarm agrees on", Manifest(), "manifest"),
        "reference/node-toml.md": settings("node.toml: a volunteer's own settings", NodeConfig(), "node"),
        "reference/scenario.md": settings("Scenario files: what is simulated", Scenario(), "scenario"),
        "reference/parts.md": parts(),
        "reference/maturity.md": maturities(),
        "reference/metrics.md": metrics(),
        "reference/python.md": python(),
        "reference/schemas.md": schemas(),
        "reference/examples.md": examples(),
        "decisions/index.md": decisions(),
    }


def cli() -> str:
    """Return every command with its help, grouped as in `starling --help`."""
    lines = ["# Commands", "", "What `--help` of each command prints. [Operating a node](../operating.md) explains them.", ""]
    for group, commands in GROUPS.items():
        lines += [f"## {group}", ""]
        for name in commands:
            command = program.get_command(click.Context(program, info_name="starling"), name)
            assert command is not None, name
            for words, each in _commands(command, f"starling {name}"):
                context = click.Context(each, info_name=words, terminal_width=88, max_content_width=88)
                lines += [f"### `{words}`", "", "```text", each.get_help(context), "```", ""]
    lines += ["## Exit codes", "", "| code | means |", "|---|---|", *(f"| {code} | {text} |" for code, text in EXIT_CODES.items())]
    return "\n".join(lines) + "\n"


def _commands(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=words)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from _commands(inner, f"{words} {name}")


def settings(title: str, config: Section, word: str) -> str:
    """Return a table of keys for each section of a settings file: what each takes, its default and meaning, from
    `node/config/schema.py`.
    """
    lines = [
        f"# {title}",
        "",
        (
            "Every key with what it takes, its default and its meaning, from the types that check a file; "
            f"`starling config show {word}` prints them too. A key of which the default is **required** must be given. "
            "Of a section whose `kind` brings keys of its own, those of the default kind are shown; [parts](parts.md) has all."
        ),
        "",
    ]
    if rows := list(_rows(config)):
        lines += [*_table(rows), ""]
    for name in config.__struct_fields__:
        section = getattr(config, name)
        if isinstance(section, Section):
            described = section.BASE if isinstance(section, PartSection) else type(section)
            lines += [f"## `[{name}]`", "", _cell(" ".join((described.__doc__ or "").split())), ""]
            lines += [*_table(_rows(section, within=f"{name}.", deep=True)), ""]
    return "\n".join(lines)


def _rows(config: Section, where: str = "", *, within: str = "", deep: bool = False) -> Iterator[str]:
    """Return a row for each value; with `deep` also for those of sections inside, under `where.key`. `within`: where the section stands."""
    meant = toml.meanings(type(config))
    plain = msgspec.to_builtins(config)
    for field in msgspec.structs.fields(type(config)):
        value = getattr(config, field.name)
        if not isinstance(value, Section):
            default = msgspec.NODEFAULT if field.required else plain.get(field.name)
            meaning = " ".join((*meant.get(field.name, ()), maturity.label(f"{within}{where}{field.name}")))
            yield row(f"`{where}{field.name}`", field.type, default, meaning)
        elif deep:
            yield from _rows(value, f"{where}{field.name}.", within=within, deep=True)


def row(key: str, takes: Any, default: object, meaning: str) -> str:
    """Return the row of a table that describes a key."""
    return f"| {key} | {_cell(allowed(takes))} | {_default(default)} | {_cell(meaning)} |"


def _default(value: object) -> str:
    """Return a default as it would stand in a file; "left out" for one without TOML."""
    if value is msgspec.NODEFAULT:
        return "**required**"
    if value is None or value is msgspec.UNSET:
        return "left out"
    written = tomli_w.dumps({"value": value}, multiline_strings=False).strip()
    line = " ".join(written.partition("= ")[2].split()).replace("[ ", "[").replace(", ]", "]")
    return f"`{line}`" if not isinstance(value, dict) else "`{}`"


def _table(rows: Iterable[str]) -> list[str]:
    return ["| key | takes | default | meaning |", "|---|---|---|---|", *rows]


def _cell(text: str) -> str:
    """Text in a table: pages named in it become links."""
    linked = re.sub(r"(?<![\w/`])docs/([\w-]+)\.md", r"[\1](../\1.md)", text)
    return linked.replace("|", "\\|")


def parts() -> str:
    """Names that a manifest can give, with the keys each takes."""
    lines = [
        "# Parts and their keys",
        "",
        (
            "What can stand under each kind of key, with the keys it adds. `module:Class` names a part of your own "
            "([extending](../extending.md)). [Methods](../methods.md) says where each comes from and which test shows it."
        ),
        "",
    ]
    manifest = Manifest()
    for key, catalogue in KINDS.items():
        where, _, part = key.partition(".")
        takes_keys = part in getattr(manifest, where).PARTS
        names = ", ".join(f"`{name}`" for name in catalogue.built_in)
        rows = [
            row(f"`{name}` | `{each.name}`" if not position else f" | `{each.name}`", each.type, each.default, each.meaning)
            for name in catalogue.built_in
            if takes_keys
            for position, each in enumerate(catalogue.keys_of(name) or ())
        ]
        lines += [f"## `{key}`", "", f"{names}.", ""]
        if label := maturity.label(key):
            lines += [f"{label} [What that means](maturity.md).", ""]
        if rows:
            lines += ["| name | key | takes | default | meaning |", "|---|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def maturities() -> str:
    """Return the page of stable and experimental parts that a manifest or a node can name."""
    lines = [
        "# Stable and experimental",
        "",
        (
            "A part is **stable** once a default, a preset, an example or a recipe of the benchmarks uses it: it keeps its keys and its "
            "meaning while manifests have the format they have. All others are **experimental**: they may change, or go, without notice; "
            "whoever creates a swarm with one is told, and members read it among what their swarm agreed on. Parts of other packages have "
            "no label."
        ),
        "",
        "| key | stable | experimental |",
        "|---|---|---|",
    ]
    for key, catalogue in KINDS.items():
        stable = (name for name in catalogue.built_in if name not in catalogue.experimental)
        lines.append(f"| `{key}` | {_codes(stable)} | {_codes(catalogue.experimental)} |")
    others = {TRAINERS.facts(name).key for name in TRAINERS.experimental} - KINDS.keys()
    return "\n".join((*lines, *(f"| `{key}` | `1` | more |" for key in sorted(others)))) + "\n"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "–"


def metrics() -> str:
    """Return the answer to a scrape of a node for which everything is known."""

    def known(kind: type[msgspec.Struct]) -> dict[str, Any]:
        return dict.fromkeys((each.field for each in exported.declared(kind)), 1)

    node: dict[str, Any] = {
        **known(StatusSnapshot),
        "peers": (PeerStatus(peer="", state="alive", **known(PeerStatus)),),
        "resources": Resources(**known(Resources)),
        "value": 1.0,
    }
    snapshot = StatusSnapshot(version=VERSION, peer="", swarm="", name="", time_s=0.0, state="training", **node)
    lines = ["# Metrics", "", "What `/metrics` has; [observing](../observing.md#metrics) says how to ask for it.", ""]
    lines += ["| metric | kind | labels | is |", "|---|---|---|---|"]
    for family in text_string_to_metric_families(exported.exposition(snapshot)[0].decode()):
        labels = ", ".join(f"`{label}`" for label in family.samples[0].labels)
        lines.append(f"| `{family.samples[0].name}` | {family.type} | {labels} | {_cell(family.documentation)} |")
    return "\n".join(lines) + "\n"


def python() -> str:
    """Public names, by mkdocstrings from the docstrings. Nothing is imported for it."""
    where = starling._WHERE  # noqa: SLF001
    lines = ["# Python API", "", "From the docstrings; [the Python API by examples](../api.md) is the place to begin.", ""]
    for name in starling.__all__:
        if name == "adapters":
            lines += ["## starling.adapters", "", "::: starling.node.tasks.adapters", ""]
        elif name != "catalogues":
            lines += [f"## starling.{name}", "", f"::: {where[name]}.{name}", ""]
    return "\n".join(lines)


def schemas() -> str:
    """Return a list of docs/schemas."""
    names = sorted(path.name for path in (ROOT / "docs/schemas").glob("*.json"))
    lines = ["# JSON Schemas", "", "Of what each command prints with `--json`; made by `python tools/schemas.py docs/schemas`.", ""]
    lines += [f"- [{name.removesuffix('.json')}](../schemas/{name})" for name in names]
    return "\n".join(lines) + "\n"


def examples() -> str:
    """Return the page of all files of examples/."""
    lines = ["# Example files", "", "`starling examples` lists those that ship with the package.", ""]
    for path in sorted((ROOT / "examples").rglob("*")):
        language = {".toml": "toml", ".py": "python"}.get(path.suffix)
        if path.is_file() and language:
            name = path.relative_to(ROOT / "examples").as_posix()
            lines += [f"## {name} {{ #{anchor(name)} }}", "", f"```{language}", path.read_text().rstrip(), "```", ""]
    return "\n".join(lines)


def anchor(name: str) -> str:
    """Return the anchor of an example file on its page."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


TOPICS = (
    "architecture",
    "exchange",
    "overlays",
    "waiting",
    "corrections",
    "compression",
    "robustness",
    "membership",
    "networks",
    "wire",
    "state",
    "models",
    "local steps",
    "large models",
    "configuration",
    "observing",
    "packaging",
    "evidence",
)
"""Of decisions, in the order of their page."""
STATUS = re.compile(r"\*\*Topic:\*\* ([a-z ]+)\. \*\*Status:\*\* ((?:holds|superseded).*)\.")
"""The third line of a decision."""


def decisions() -> str:
    """Return the page that lists all decisions by topic, those that hold before those that are superseded.

    Raises:
        ValueError: a page of docs/decisions does not say its topic and status.
    """
    rows: dict[str, list[tuple[bool, str]]] = {topic: [] for topic in TOPICS}
    for path in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")):
        title, _, line, *_ = path.read_text().split("\n", 3)
        parsed = STATUS.fullmatch(line)
        if parsed is None or parsed[1] not in rows:
            raise ValueError(f"{path.name}: line 3 must be '**Topic:** TOPIC. **Status:** holds.' with a topic of {', '.join(TOPICS)}")
        number, _, title = title.removeprefix("# ").partition(" ")
        rows[parsed[1]].append((parsed[2].startswith("superseded"), f"| {number} | [{title}]({path.name}) | {parsed[2]} |"))
    lines = ["# Decisions", "", "Choices between alternatives, with what was measured."]
    for topic, entries in rows.items():
        lines += ["", f"## {topic.capitalize()}", "", "| number | decision | status |", "|---|---|---|"]
        lines += [row for _, row in sorted(entries)]
    return "\n".join(lines) + "\n"
