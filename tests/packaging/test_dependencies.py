"""Dependencies: versions, hashes, base images, and their use in make targets."""

import json
import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from starling.node.versions import INSTALL_LIBP2P, LIBP2P
from tools.sbom import PIN, bom

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ELSEWHERE = {"sys_platform == 'win32'"}  # with PyTorch's build for Linux, which needs CUDA's libraries
DIGEST = re.compile(r"(\S+:)?[\w.-]+@sha256:[0-9a-f]{64}")


def pins():
    """Return name -> version, as `make` installs them."""
    lines = (ROOT / "constraints.txt").read_text().split()
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in (line.split("==") for line in lines)}


def test_the_lock_has_the_pins_and_packages_for_other_platforms():
    locked = {pin["name"]: pin for pin in PIN.finditer(LOCK)}
    assert {name: locked[name]["version"] for name in pins()} == pins()
    for name in locked.keys() - pins().keys():
        assert "sys_platform == 'linux'" in locked[name]["marker"] or locked[name]["marker"] in ELSEWHERE, name
    assert {locked[name]["marker"] for name in ("torch", "numpy", "libp2p")} == {None}


def test_dependencies_of_libp2p_are_pinned_except_the_one_to_compile():
    """libp2p is installed without its dependencies: decisions/0136."""
    ours = {each.name: each.specifier for each in map(Requirement, PROJECT["dependencies"])}
    stubs = {"types-requests", "mypy-protobuf"}  # of types
    for each in map(Requirement, metadata.requires("libp2p")):
        if each.name in stubs or (each.marker is not None and not each.marker.evaluate({"extra": ""})):
            continue
        name = next(name for name in ours if canonicalize_name(name) == canonicalize_name(each.name))
        least = next(clause.version for clause in ours[name] if clause.operator in {">=", "=="})
        assert (least in each.specifier) == (name != "fastecdsa"), name
        assert {str(clause) for clause in each.specifier if clause.operator == "<"} <= {str(clause) for clause in ours[name]}
    assert f"libp2p=={LIBP2P}" in PROJECT["optional-dependencies"]["dev"]
    assert pins()["libp2p"] == metadata.version("libp2p") == LIBP2P
    assert INSTALL_LIBP2P in (ROOT / "README.md").read_text()


def test_every_pin_of_the_lock_has_hashes_and_no_file_is_taken_from_elsewhere():
    blocks = re.split(r"\n(?=\S)", LOCK.partition("make lock\n")[2].rstrip())
    assert len(blocks) == len(list(PIN.finditer(LOCK)))
    for block in blocks:
        head, *hashes = block.split(" \\\n")
        assert hashes, head
        assert all(re.fullmatch(r" {4}--hash=sha256:[0-9a-f]{64}", each) for each in hashes), head
    assert "://" not in LOCK


def test_the_bill_of_materials_lists_all_pins_and_is_reproducible():
    document = bom(PROJECT, "1.2.3", LOCK)
    assert document == bom(PROJECT, "1.2.3", LOCK)
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/starling-swarm@1.2.3"
    named = {part["name"]: part["version"] for part in document["components"]}
    assert pins().items() <= named.items()
    refs = [part["bom-ref"] for part in document["components"]]
    assert len(set(refs)) == len(refs)
    assert document["dependencies"][0]["dependsOn"] == refs
    other = bom(PROJECT, "1.2.3", LOCK.replace("numpy==", "numpy==9."))
    assert other["serialNumber"] != document["serialNumber"]


def test_base_images_have_digests_in_one_file_only():
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    stages = set(re.findall(r" AS (\w+)$", dockerfile, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) - stages == {"${BASE}"}
    composed = (ROOT / "docker" / "compose.yaml").read_text()
    variables = re.findall(r"\$\{(BASE|PROMETHEUS|GRAFANA)-", composed)
    assert len(re.findall(r"image: (?!starling)", composed)) + 1 == len(set(variables))
    lines = [line for line in (ROOT / "docker" / "digests.env").read_text().split("\n") if line and line[0] != "#"]
    assert {line.partition("=")[0] for line in lines} == set(variables)
    assert all(DIGEST.fullmatch(line.partition("=")[2]) for line in lines), lines


@pytest.mark.parametrize(
    ("code", "written", "within"),
    [
        (0, '{"dependencies": []}', "No known vulnerabilities found"),
        (1, '{"dependencies": [{"name": "h11"}]}', "Found 1 known vulnerability in 1 package"),
        (1, "", "nothing is known"),
    ],
)
def test_an_audit_with_findings_or_without_a_database_fails(tmp_path, code, written, within):
    """Without a database every package would look safe, which must not count as a clean result."""
    program = tmp_path / "tools" / "bin" / "pip-audit"
    program.parent.mkdir(parents=True)
    last = within if written else "ERROR: not found on the index"
    program.write_text(f"#!/bin/sh\nprintf '{written}' > build/audit.json\necho '{last}' >&2\nexit {code}\n")
    program.chmod(0o755)
    (program.parent / "uv").touch()  # else it would be installed
    (tmp_path / "tools" / ".ready").touch()
    plain = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    words = ["make", "-sf", ROOT / "Makefile", "audit", f"TOOLS={tmp_path / 'tools'}"]
    done = subprocess.run(words, cwd=tmp_path, env=plain, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (code == 0), done.stderr
    assert within in done.stderr
    assert ("nothing is known" in done.stderr) == (not written)
    if written:
        assert json.loads((tmp_path / "build" / "audit.json").read_text())
