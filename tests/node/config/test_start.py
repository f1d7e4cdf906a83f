"""A swarm that begins with a given model names it by the digest of its file: no peer's manifest makes a node read another."""

import hashlib

import pytest

from starling.gossip.errors import ConfigError
from starling.node.config import manifest as manifests
from starling.node.config import start, toml
from starling.node.config.schema import Manifest, NodeConfig
from starling.node.identity import Identity

FOUNDER = Identity.from_seed(bytes(32))
DIGEST = f"sha256:{'ab' * 32}"


def named(path):
    return toml.apply_set(Manifest(), [f"task.start={path}"])


@pytest.fixture
def file(tmp_path):
    (tmp_path / "warm.safetensors").write_bytes(b"a model")
    return tmp_path / "warm.safetensors"


def test_founding_puts_the_digest_in_the_place_of_the_file_and_the_path_in_the_founder_s_settings(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    manifest, config = start.sealed(named("warm.safetensors"), NodeConfig(shard=1))
    assert manifest.task.start == f"sha256:{hashlib.sha256(b'a model').hexdigest()}"
    assert (config.start, config.shard) == (str(file), 1)
    assert start.read(manifest.task.start, config.start) == (str(file), b"a model")
    founded = manifests.found(manifest, FOUNDER, 1)
    assert manifests.from_bytes(manifests.to_bytes(founded), manifests.swarm_id(founded), "peer") == founded
    assert start.sealed(founded, NodeConfig()) == (
        founded,
        NodeConfig(),
    )  # a template: its file is given with --set start


def test_members_on_the_founder_s_machine_have_the_same_file(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert start.place(named("warm.safetensors")) == str(file)
    assert start.place(named(DIGEST)) == start.place(Manifest()) == start.absolute("") == ""


def test_manifests_without_a_start_keep_the_bytes_they_had():
    assert b"start" not in manifests.to_bytes(Manifest())
    assert b"start" in manifests.to_bytes(named(DIGEST))


def test_a_founded_manifest_that_names_a_file_is_refused():
    with pytest.raises(
        ConfigError, match=r"task\.start: .* must be sha256: and 64 digits, got '/etc/hosts'; .*`starling found`"
    ):
        manifests.found(named("/etc/hosts"), FOUNDER, 1)


@pytest.mark.parametrize("digest", ["sha256:", DIGEST.upper(), DIGEST + "0", "sha1:" + "0" * 40])
def test_what_is_no_digest_is_a_path(digest):
    assert not start.is_digest(digest)
    assert start.is_digest(DIGEST)


@pytest.mark.parametrize(
    ("begins", "given", "words"),
    [
        (DIGEST, "", r"start: .*no peer sends; .*`starling join INVITE --set start=FILE`"),
        (DIGEST, "warm.safetensors", rf"start: 'warm.safetensors' is sha256:\w+, must be {DIGEST}; .*`sha256sum warm.safetensors`"),
        (DIGEST, "none", "start: 'none' cannot be read: No such file or directory; .*`starling export MODEL.safetensors`"),
        ("none", "", r"task\.start: 'none' cannot be read: No such file"),
        (".", "", r"task\.start: '\.' cannot be read: Is a directory"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_the_one_is_named_in_one_line_with_the_next_command(file, monkeypatch, begins, given, words):
    monkeypatch.chdir(file.parent)
    with pytest.raises(ConfigError, match=words) as raised:
        start.read(begins, given)
    assert "\n" not in str(raised.value)
