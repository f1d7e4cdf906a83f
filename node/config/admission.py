"""Kinds of admission, their keys, and the checks on a manifest's. Torch-free."""

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from starling.gossip.catalogue import Catalogue, Entry
from starling.gossip.errors import ConfigError
from starling.node.identity import public_key_of

_KIB_PER_S = 1 << 20  # KiB that argon2id fills per second with one lane on an ordinary core
_LONG_S = 600.0
_EPOCH_SHARE = 16  # work takes at most this part of an epoch: even six times the average ends before the last ticket does
_HERE = "starling.node.config.admission"


@dataclass(frozen=True, slots=True)
class ProofOfWork:
    """Keys of open admission with a proof of work.

    Args:
        bits: difficulty, 2**bits tries on average; 0 asks for no work.
        memory_kib: memory of one try of argon2id.
        epoch_s: seconds for which a proof of work is valid.
    """

    bits: Annotated[int, Meta(ge=0, le=24)] = 0
    memory_kib: Annotated[int, Meta(ge=8, le=65536)] = 8192
    epoch_s: Annotated[float, Meta(ge=60, le=1e7)] = 21600.0

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Refuse work that would expire before it is done; warn of much work."""
        admission = agreed.admission
        if not admission.bits:
            return []
        takes_s = 2**admission.bits * admission.memory_kib / _KIB_PER_S
        work = f"admission.bits: {admission.bits} bits of {admission.memory_kib} KiB"
        longest_s = admission.epoch_s / _EPOCH_SHARE
        if takes_s > longest_s:
            affordable = max(1, int(longest_s * _KIB_PER_S / admission.memory_kib).bit_length() - 1)
            raise ConfigError(
                f"{work} take a core about {takes_s:,.0f} s, must be within a sixteenth of admission.epoch_s = {admission.epoch_s:g}; "
                f"try `--set admission.bits={affordable}`"
            )
        return [f"{work} take every member about {takes_s / 60:.0f} min an epoch"] if takes_s > _LONG_S else []


@dataclass(frozen=True, slots=True)
class Invitations:
    """Keys of admission by invitation.

    Args:
        depth: longest chain from the creator to a member.
        quota: members that an invited member may invite; the creator has no limit.
    """

    depth: Annotated[int, Meta(ge=1, le=8)] = 2
    quota: Annotated[int, Meta(ge=0, le=64)] = 3


@dataclass(frozen=True, slots=True)
class AllowList:
    """Keys of admission by a list of peer ids.

    Args:
        members: peer ids; the creator is one anyway.
    """

    members: Annotated[tuple[Annotated[str, Meta(max_length=128)], ...], Meta(max_length=256)] = ()

    @staticmethod
    def check(agreed: Any) -> list[str]:
        """Raise ConfigError for an entry that is no peer id."""
        for peer in agreed.admission.members:
            try:
                public_key_of(peer)
            except ValueError as error:
                raise ConfigError(
                    f"admission.members: must be peer ids, got {peer!r}; a node prints its own with `starling status --json`"
                ) from error
        return []


ADMISSIONS: Catalogue[Any, None] = Catalogue(
    "admission.kind",
    "",
    {"open": Entry(f"{_HERE}:ProofOfWork"), "invite": Entry(f"{_HERE}:Invitations"), "allow": Entry(f"{_HERE}:AllowList")},
)
