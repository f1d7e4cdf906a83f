"""A node's identity: an Ed25519 key in a file, and the libp2p peer id that encodes its public half.

Signatures are over domain-separated bytes, so that what was signed as one kind of thing never counts as another.
Knows the format of libp2p's Ed25519 peer ids, and needs no libp2p for it.
"""

import os
import secrets
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Self

import base58
import msgpack
import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from starling.gossip.errors import ConfigError
from starling.gossip.wire.schema import Record

# An identity multihash (code 0, 36 bytes) of the protobuf message PublicKey{type: Ed25519, data: 32 bytes}.
_PEER_ID_PREFIX = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])
_PEER_ID_TEXT = 52  # characters: 38 bytes in base58 that begin with these six
_RECORD_DOMAIN = b"starling/record/1\0"


@lru_cache(maxsize=4096)
def peer_id_of(public_key: bytes) -> str:
    """Return the libp2p peer id ("12D3KooW…") of a raw 32-byte Ed25519 public key."""
    if len(public_key) != 32:
        raise ValueError(f"an Ed25519 public key has 32 bytes, got {len(public_key)}")
    peer_id: str = base58.b58encode(_PEER_ID_PREFIX + public_key).decode()
    return peer_id


def public_key_of(peer_id: str) -> bytes:
    """Return the raw public key in a peer id. Raises ValueError: not the canonical peer id of an Ed25519 key."""
    if len(peer_id) != _PEER_ID_TEXT:
        raise ValueError("not the peer id of an Ed25519 key")
    raw = base58.b58decode(peer_id)
    if not raw.startswith(_PEER_ID_PREFIX) or len(raw) != len(_PEER_ID_PREFIX) + 32:
        raise ValueError("not the peer id of an Ed25519 key")
    return bytes(raw[len(_PEER_ID_PREFIX) :])


def verify(peer_id: str, signature: bytes, message: bytes) -> bool:
    """Tell if `peer_id` signed `message`. False for anything malformed."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(peer_id)).verify(signature, message)
    except (ValueError, InvalidSignature):
        return False
    return True


class Identity:
    """A node's key pair."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.peer_id = peer_id_of(key.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, seed: bytes) -> Self:
        """Return the identity of 32 secret bytes; for tests and simulation, where identities must repeat."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """Return the identity in `path`, made and stored there (PEM, mode 0600) on the first call. A file is never overwritten.

        Raises ConfigError: the file cannot be read or written, others may read it, or it holds no Ed25519 key.
        """
        try:
            raw = path.read_bytes()
            others = path.stat().st_mode & 0o077
        except FileNotFoundError:
            return cls._create(path)
        except OSError as error:
            raise ConfigError(f"identity: cannot read {path}: {error.strerror}; try `ls -l {path}`") from error
        if others:
            raise ConfigError(f"identity: others may read the private key in {path}; try `chmod 600 {path}`")
        try:
            key = load_pem_private_key(raw, password=None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(
                f"identity: {path} holds no Ed25519 key; restore it, or move it away with `mv {path} {path}.bad` for a new one"
            )
        return cls(key)

    @classmethod
    def _create(cls, path: Path) -> Self:
        """Written whole under another name, then linked: a crash leaves no half key, a rival's key is not replaced."""
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        part = path.with_name(f".identity-{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(pem)
                file.flush()
                os.fsync(file.fileno())
            os.link(part, path)
        except FileExistsError:
            return cls.load_or_create(path)
        except OSError as error:
            raise ConfigError(f"identity: cannot write {path}: {error.strerror}; choose another --dir") from error
        finally:
            with suppress(OSError):
                part.unlink()
        return cls(key)

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes, for the network's own key pair."""
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """64 bytes; equal messages give equal signatures."""
        return self._key.sign(message)

    def sign_record(self, record: Record) -> Record:
        """Return a membership record of ours with its signature filled in."""
        assert record.peer == self.peer_id
        return msgspec.structs.replace(record, signature=self.sign(_record_bytes(record)))


def verify_record(record: Record, swarm: str) -> bool:
    """Tell if a record is signed by its peer, for this swarm."""
    return record.swarm == swarm and verify(record.peer, record.signature, _record_bytes(record))


def _record_bytes(record: Record) -> bytes:
    fields = [record.peer, record.swarm, record.incarnation, record.version, record.status, list(record.addresses)]
    if record.credential or record.seat:
        fields.append(record.credential)
    if record.seat:
        fields.append(record.seat)
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return _RECORD_DOMAIN + packed
