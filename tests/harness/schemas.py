"""`--json` output compared with its published schema."""

import json
from functools import cache
from pathlib import Path

import jsonschema

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


@cache
def validator(name):
    return jsonschema.Draft202012Validator(json.loads((FOLDER / f"{name}.json").read_text()))


def valid(name, printed):
    """Return the document printed by a command, after checking it against the command's schema."""
    document = json.loads(printed)
    validator(name).validate(document)
    return document
