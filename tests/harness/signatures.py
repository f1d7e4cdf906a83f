"""Signatures that cost nothing: a keyed hash."""

from hashlib import blake2b


def sign(peer: str, message: bytes) -> bytes:
    return blake2b(message, key=peer.encode(), digest_size=64).digest()


def verify(peer: str, signature: bytes, message: bytes) -> bool:
    return signature == sign(peer, message)
