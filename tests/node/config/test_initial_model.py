"""An initial model is named by the digest of its file, so no peer's manifest makes a node read another file."""

import hashlib

import pytest

from starling.gossip.chunks import digests, root
from starling.gossip.errors import ConfigError
from starling.node.config import initial_model, toml
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest, NodeConfig, TaskSection
from starling.node.identity import Identity

CREATOR = Identity.from_seed(bytes(32))
DIGEST = f"sha256:{'ab' * 32}"


def named(path):
    return toml.apply_set(Manifest(), [f"task.start={path}"])


@pytest.fixture
def file(tmp_path):
    (tmp_path / "warm.safetensors").write_bytes(b"a model")
    return tmp_path / "warm.safetensors"


def test_creation_stores_the_file_s_digest_in_the_manifest_and_its_path_in_node_settings(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    manifest, config = initial_model.with_file_digest(named("warm.safetensors"), NodeConfig(shard=1))
    assert manifest.task.start == f"sha256:{hashlib.sha256(b'a model').hexdigest()}"
    assert (config.start, config.shard) == (str(file), 1)
    assert initial_model.read(manifest.task.start, config.start) == (str(file), b"a model")
    created = manifests.create(manifest, CREATOR, 1)
    assert manifests.from_bytes(manifests.to_bytes(created), manifests.swarm_id(created), "peer") == created
    assert initial_model.with_file_digest(created, NodeConfig()) == (
        created,
        NodeConfig(),
    )  # a template: its file is given with --set start


def test_members_on_the_creator_s_machine_have_the_same_file(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert initial_model.place(named("warm.safetensors")) == str(file)
    assert initial_model.place(named(DIGEST)) == initial_model.place(Manifest()) == initial_model.absolute("") == ""


def test_a_created_manifest_that_names_a_file_is_refused():
    with pytest.raises(ConfigError, match=r"task\.start: .* must be sha256: and 64 digits, got '/etc/hosts'; .*`starling create`"):
        manifests.create(named("/etc/hosts"), CREATOR, 1)


@pytest.mark.parametrize("digest", ["sha256:", DIGEST.upper(), DIGEST + "0", "sha1:" + "0" * 40])
def test_a_value_that_is_not_a_digest_is_a_path(digest):
    assert not initial_model.is_digest(digest)
    assert initial_model.is_digest(DIGEST)


@pytest.mark.parametrize(
    ("begins", "given", "words"),
    [
        (DIGEST, "", r"start: .*no peer sends; .*`starling join INVITE --set start=FILE`"),
        (DIGEST, "warm.safetensors", rf"start: 'warm.safetensors' is sha256:\w+, must be {DIGEST}; .*`sha256sum warm.safetensors`"),
        (DIGEST, "none", "start: 'none' cannot be read: No such file or directory; .*`starling export MODEL.safetensors`"),
        ("none", "", r"task\.start: 'none' cannot be read: No such file"),
        (".", "", r"task\.start: '\.' cannot be read: Is a directory"),
    ],
)
def test_a_file_with_another_digest_gives_one_line_with_the_next_command(file, monkeypatch, begins, given, words):
    monkeypatch.chdir(file.parent)
    with pytest.raises(ConfigError, match=words) as raised:
        initial_model.read(begins, given)
    assert "\n" not in str(raised.value)


def scripts(begin="", **keys):
    return Manifest(task=TaskSection(kind="script", start=str(begin), **keys))


def form(data):
    return f"chunks:{root(digests(data)).hex()}:{len(data)}"


@pytest.fixture
def large(tmp_path):
    data = b"".join(number.to_bytes(4, "little") for number in range(600_000))  # three chunks, the last one short
    (tmp_path / "large.safetensors").write_bytes(data)
    return tmp_path / "large.safetensors"


def test_a_swarm_of_scripts_names_its_file_by_the_root_of_its_chunks_and_its_size(large):
    manifest, config = initial_model.with_file_digest(scripts(large), NodeConfig(shard=1))
    data = large.read_bytes()
    assert manifest.task.start == form(data)
    assert (config.start, config.shard) == (str(large), 1)
    assert initial_model.sent(manifest) == initial_model.Chunked(root(digests(data)), len(data))
    assert initial_model.read(manifest.task.start, config.start) == (str(large), data)
    assert initial_model.place(manifest) == ""
    created = manifests.create(manifest, CREATOR, 1)
    assert manifests.from_bytes(manifests.to_bytes(created), manifests.swarm_id(created), "peer") == created


def test_a_swarm_of_scripts_without_a_start_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"task\.start: .*none is named; .*`starling\.Swarm\(DIR, model") as raised:
        initial_model.with_file_digest(scripts(), NodeConfig())
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"task\.start: of a created swarm of scripts must be chunks:"):
        manifests.create(scripts(), CREATOR, 1)


def test_a_template_needs_its_initial_file(large, file):
    template, _ = initial_model.with_file_digest(scripts(large), NodeConfig())
    assert initial_model.with_file_digest(template, NodeConfig(start=str(large))) == (template, NodeConfig(start=str(large)))
    with pytest.raises(ConfigError, match="none is named"):
        initial_model.with_file_digest(template, NodeConfig())
    with pytest.raises(ConfigError, match=r"start: .* is chunks:\w+:7, must be chunks:"):
        initial_model.with_file_digest(template, NodeConfig(start=str(file)))


@pytest.mark.parametrize(
    "begin",
    [
        "/etc/hosts",
        DIGEST,
        f"chunks:{'ab' * 32}",
        f"chunks:{'ab' * 32}:0",
        f"chunks:{'ab' * 32}:012",
        f"chunks:{'AB' * 32}:12",
        f"chunks:{'ab' * 32}:{initial_model.MAX_BYTES + 1}",
        f"chunks:{'ab' * 31}:12",
        f"chunks:{'ab' * 32}:12\n",
        f"chunks:{'ab' * 32}:-1",
    ],
)
def test_a_created_swarm_of_scripts_names_no_path_and_nothing_too_large(begin):
    with pytest.raises(ConfigError, match=r"task\.start: of a created swarm of scripts must be chunks:") as raised:
        manifests.create(scripts(begin), CREATOR, 1)
    assert len(str(raised.value).splitlines()) == 1


def test_only_a_swarm_of_scripts_names_a_file_by_its_chunks():
    with pytest.raises(ConfigError, match=r"task\.start: of a created manifest must be sha256:"):
        manifests.create(named(form(b"a model")), CREATOR, 1)
    assert initial_model.sent(named(form(b"a model"))) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"x" + data[1:],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"",
        lambda data: data[1 << 20 : 2 << 20] + data[: 1 << 20] + data[2 << 20 :],
    ],
    ids=["another byte", "truncated", "too long", "empty", "chunks in another order"],
)
def test_an_initial_file_with_other_chunks_is_refused(large, damage):
    manifest, _ = initial_model.with_file_digest(scripts(large), NodeConfig())
    large.write_bytes(damage(large.read_bytes()))
    with pytest.raises(ConfigError, match=r"^start: ") as raised:
        initial_model.read(manifest.task.start, str(large))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "words"), [("", "which is not here; members send it"), ("none", "cannot be read: No such file or directory")]
)
def test_a_missing_initial_file_is_named(given, words):
    with pytest.raises(ConfigError, match=words):
        initial_model.read(form(b"a model"), given)


def test_a_file_that_is_larger_than_members_send_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(initial_model.MAX_BYTES + 1)
    with pytest.raises(ConfigError, match=r"task\.start: .* must be of 1 to 34,359,738,368 bytes, has 34,359,738,369"):
        initial_model.with_file_digest(scripts(tmp_path / "sparse"), NodeConfig())
