"""What `--json` prints, held against the schema that is published for it."""

import json
from functools import cache
from pathlib import Path

import jsonschema

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


@cache
def validator(name):
    return jsonschema.Draft202012Validator(json.loads((FOLDER / f"{name}.json").read_text()))


def valid(name, printed):
    """The document in what a command printed, which fits the schema of that command."""
    document = json.loads(printed)
    validator(name).validate(document)
    return document
