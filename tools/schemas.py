"""JSON Schemas of everything that `--json` prints: `python tools/schemas.py docs/schemas` writes a file for each.

Made from the types that are encoded, so they cannot say anything else; a test notices when the files are older than the types.
"""

import argparse
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import msgspec

from starling.gossip.catalogue import Scalar
from starling.node import node_handle
from starling.node.cli import documents
from starling.node.cli.main import COMMANDS
from starling.node.config import toml
from starling.node.demo.summary import DemoSummary
from starling.node.plan.results import Plan
from starling.node.simulate import results
from starling.node.simulate.schema import Scenario
from starling.node.status import snapshot

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TYPES: Mapping[str, type[msgspec.Struct]] = MappingProxyType(
    {
        "ask": node_handle.Written,
        "ban": documents.Verdict,
        "bench-codec": documents.Codecs,
        "bench-link": documents.Links,
        "bench-loop": documents.Loops,
        "bench-never-worse": documents.NeverWorse,
        "bench-overlap": documents.Overlaps,
        "bench-rules": documents.Rules,
        "config-show": documents.ShownConfig,
        "demo": DemoSummary,
        "doctor": documents.Diagnosis,
        "eval": node_handle.Evaluation,
        "export": documents.Exported,
        "create": documents.Created,
        "invite": node_handle.Invited,
        "join": documents.Joined,
        "limits": node_handle.Limits,
        "logs": documents.Record,
        "manifest-show": documents.ShownManifest,
        "overlay-compare": documents.OverlayComparison,
        "overlay-sampling": documents.OverlaySampling,
        "overlay-show": documents.OverlayFacts,
        "peers": documents.Peers,
        "plan": Plan,
        "revoke": documents.Revoked,
        "simulate": results.Finished,
        "status": snapshot.StatusSnapshot,
        "trust": documents.Verdict,
        "unban": documents.Verdict,
        "upgrade-check": documents.UpgradeCheck,
    }
)
"""Command, its words joined by a dash -> what it prints."""
VERSIONS: Mapping[str, int] = MappingProxyType({"status": snapshot.VERSION, "simulate": results.VERSION})
"""Where it is not documents.Document that counts."""


def schema(name: str) -> dict[str, Any]:
    """Return the schema of one command's JSON; `name` is a key of TYPES."""
    shown: Any = TYPES[name] if name != "simulate" else _Simulated
    (named,), parts = msgspec.json.schema_components((shown,), ref_template="#/$defs/{name}")
    every = {cls.__name__: cls for cls in _structs(shown)}
    for part, definition in parts.items():
        if "properties" in definition:
            complete(definition, every[part])
    top = parts.pop(named["$ref"].rpartition("/")[2])
    if name == "simulate":
        _unwrap(top, parts)
    if name in VERSIONS:
        top["properties"]["version"] = {"const": VERSIONS[name]}
    command = name if name in COMMANDS else name.replace("-", " ", 1)
    made = {"$schema": DRAFT, **top, "title": f"starling {command} --json"}
    return {**made, "$defs": dict(sorted(parts.items()))} if parts else made


class _Run(results.Outcome, frozen=True, kw_only=True):
    """One run: its labels, its outcome, and under `wall` the elapsed seconds."""

    labels: dict[str, Scalar]
    wall: dict[str, float]


class _Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `starling simulate --json`."""

    version: int
    scenario: Scenario
    planned: int
    """Runs there were to be; fewer are there after Ctrl-C."""
    runs: tuple[_Run, ...]


def _unwrap(top: dict[str, Any], parts: dict[str, Any]) -> None:
    """Move `wall_s` under `wall`, as `results.to_json` does."""
    run = parts.pop("_Run")
    del run["properties"]["wall_s"]
    run["required"].remove("wall_s")
    parts["Run"] = {**run, "title": "Run"}
    top["properties"]["runs"]["items"]["$ref"] = "#/$defs/Run"


def complete(definition: dict[str, Any], cls: type[msgspec.Struct]) -> None:
    """Declare all keys required, defaults too, except those left unset, and numbers that may not be finite as nullable."""
    fields = msgspec.structs.fields(cls)
    definition.pop("additionalProperties", None)  # a later version may say more
    if "description" in definition:  # Python 3.13 strips a docstring's indentation, older ones do not
        definition["description"] = inspect.cleandoc(definition["description"])
    always = [field.encode_name for field in fields if msgspec.UnsetType not in get_args(field.type)]
    tag = cls.__struct_config__.tag_field
    definition["required"] = always if tag is None else [tag, *always]
    for field in fields:
        stated = definition["properties"][field.encode_name]
        stated.pop("default", None)
        if meaning := toml.meanings(cls).get(field.name):
            stated["description"] = " ".join(meaning)


def _structs(kind: Any) -> set[type[msgspec.Struct]]:
    """Return all types of structs that `kind` can hold, itself included."""
    types: set[type[msgspec.Struct]] = set()
    waiting = [kind]
    while waiting:
        each = waiting.pop()
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            if each not in types:
                types.add(each)
                waiting += [field.type for field in msgspec.structs.fields(each)]
        else:
            waiting += get_args(each)
    return types


def main(arguments: Sequence[str] | None = None) -> None:
    """A file for each command; others of that folder are left alone."""
    parser = argparse.ArgumentParser(description="Write a JSON Schema for each command that has --json.")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in TYPES:
        path = folder / f"{name}.json"
        path.write_text(text(name))
        print(path)


def text(name: str) -> str:
    """Return the file of a command."""
    return json.dumps(_whole(schema(name)), indent=2, ensure_ascii=False) + "\n"


def _whole(stated: Any) -> Any:
    """Bounds like 1.0 as 1: types that differ in that alone are one type, and whichever was made first decides how it is written."""
    match stated:
        case dict():
            return {key: _whole(value) for key, value in stated.items()}
        case list():
            return [_whole(value) for value in stated]
        case float() if stated.is_integer():
            return int(stated)
        case _:
            return stated


if __name__ == "__main__":
    main()
