"""Both ends of a Noise session, from another implementation."""

from noise.connection import Keypair, NoiseConnection


def noise_ends() -> tuple[NoiseConnection, NoiseConnection]:
    """Return initiator and responder after a handshake, with the same static keys each time."""
    one, other = (NoiseConnection.from_name(b"Noise_XX_25519_ChaChaPoly_SHA256") for _ in range(2))
    one.set_as_initiator()
    other.set_as_responder()
    for number, end in enumerate((one, other)):
        end.set_keypair_from_private_bytes(Keypair.STATIC, bytes([number + 1]) * 32)
        end.start_handshake()
    other.read_message(one.write_message())
    one.read_message(other.write_message())
    other.read_message(one.write_message())
    return one, other
