"""A bill of materials of the packages of `requirements.lock`, as CycloneDX 1.6 in JSON: `python -m tools.sbom`.

Equal files give equal bytes: there is no time in it, and its serial number is a hash of its content.
"""

import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

import starling

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))? \\$", re.MULTILINE)


def bom(project: dict[str, Any], version: str, lock: str) -> dict[str, Any]:
    """Return the document.

    Args:
        project: `[project]` of pyproject.toml.
        version: of the project.
        lock: text of a file of pins, as `make lock` writes it.

    Returns:
        What `json.dumps` takes; a package that only some machines get has their environment marker as the property `marker`.
    """
    own = _component(project["name"], version) | {"type": "application", "licenses": [{"license": {"id": project["license"]}}]}
    parts = [_component(pin["name"], pin["version"], pin["marker"]) for pin in PIN.finditer(lock)]
    root, refs = own["bom-ref"], [part["bom-ref"] for part in parts]
    content = {"metadata": {"component": own}, "components": parts, "dependencies": [{"ref": root, "dependsOn": refs}]}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1, **content}


def _component(name: str, version: str, marker: str | None = None) -> dict[str, Any]:
    link = f"pkg:pypi/{name}@{version}"
    made: dict[str, Any] = {"type": "library", "bom-ref": link, "name": name, "version": version, "purl": link}
    return made | ({"properties": [{"name": "marker", "value": marker}]} if marker else {})


if __name__ == "__main__":
    described = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    document = bom(described, starling.__version__, (ROOT / "requirements.lock").read_text(encoding="utf-8"))
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
