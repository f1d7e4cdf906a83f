"""Identities: libp2p's ids without libp2p, keys that persist, signatures bound to their message and peer."""

import gc
import resource
import stat

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import x25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from starling.gossip.errors import ConfigError
from starling.gossip.wire.schema import Record
from starling.node.identity import Identity, peer_id_of, public_key_of, verify, verify_record
from tests.strategies import examples

SWARM = "s" + "a" * 32


def identity(n=1):
    return Identity.from_seed(n.to_bytes(32, "big"))


@given(st.binary(min_size=32, max_size=32))
def test_the_peer_id_holds_the_public_key(public_key):
    """The id alone suffices to check a signature."""
    assert public_key_of(peer_id_of(public_key)) == public_key
    assert peer_id_of(public_key).startswith("12D3Koo")


@pytest.mark.slow
@examples(20)
@given(seed=st.binary(min_size=32, max_size=32))
def test_peer_ids_equal_those_of_libp2p(seed):
    """The network derives the id from the same seed with libp2p's own code; both must agree."""
    ed25519 = pytest.importorskip("libp2p.crypto.ed25519")
    from libp2p.peer.id import ID

    theirs = str(ID.from_pubkey(ed25519.create_new_key_pair(seed).public_key))
    ours = Identity.from_seed(seed)
    assert ours.peer_id == theirs
    assert ours.seed == seed


def test_the_key_is_kept_private_and_the_id_stable(tmp_path):
    path = tmp_path / "identity.key"
    first = Identity.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load_or_create(path).peer_id == first.peer_id
    assert [file.name for file in tmp_path.iterdir()] == ["identity.key"]


def pem_of_another_kind():
    key = x25519.X25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"", 0o600, "holds no Ed25519 key"),
        (b"rubbish", 0o600, "holds no Ed25519 key"),
        (b"\xff" * 64, 0o600, "holds no Ed25519 key"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", 0o600, "holds no Ed25519 key"),
        (pem_of_another_kind(), 0o600, "holds no Ed25519 key"),
        (b"", 0o644, "chmod 600"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_refused_and_never_overwritten(content, mode, reason, tmp_path):
    """A new key would make another peer, which only the user can decide."""
    path = tmp_path / "identity.key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=reason) as error:
        Identity.load_or_create(path)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == content


def test_an_unusable_identity_folder_gives_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot write"):
        Identity.load_or_create(tmp_path / "missing" / "identity.key")
    with pytest.raises(ConfigError, match="cannot read"):
        Identity.load_or_create(tmp_path)


def test_a_disk_that_is_full_leaves_no_half_key_and_gives_one_line(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        with pytest.raises(ConfigError, match="identity: cannot write"):
            Identity.load_or_create(tmp_path / "identity.key")
        gc.collect()  # a file that could not be closed would complain on standard error, which is an error here
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_signature_is_valid_for_one_message_and_one_peer():
    one, other = identity(1), identity(2)
    signature = one.sign(b"message")
    assert verify(one.peer_id, signature, b"message")
    assert not verify(one.peer_id, signature, b"massage")
    assert not verify(other.peer_id, signature, b"message")


@pytest.mark.parametrize(
    "peer", ["", "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "12D3KooW", *(52 * each for each in "01z"), "12D3KooW" + "é" * 44]
)
def test_a_malformed_peer_id_verifies_nothing(peer):
    assert not verify(peer, bytes(64), b"message")


@given(st.sampled_from(["peer", "swarm", "incarnation", "version", "status", "addresses", "signature"]))
def test_every_field_of_a_record_is_signed(field):
    """Strangers forward records and must not be able to change them."""
    me = identity()
    record = me.sign_record(Record(me.peer_id, SWARM, 5, 1, "alive", ("/ip4/1.2.3.4/tcp/1",), b""))
    assert verify_record(record, SWARM)
    changed = {
        "peer": identity(2).peer_id,
        "swarm": "s" + "b" * 32,
        "incarnation": 6,
        "version": 2,
        "status": "left",
        "addresses": ("/ip4/1.2.3.4/tcp/2",),
        "signature": bytes(64),
    }
    assert not verify_record(msgspec.structs.replace(record, **{field: changed[field]}), SWARM)
    assert not verify_record(record, "s" + "b" * 32)
