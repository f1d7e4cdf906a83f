"""Checks of a manifest's admission section. Torch-free."""

from __future__ import annotations

from starling.gossip.errors import ConfigError
from starling.node.config.schema import AdmissionSection
from starling.node.identity import public_key_of

KIB_PER_S = 1 << 20  # what argon2id fills with one lane on an ordinary core, about 1 GiB a second
LONG_S = 600.0
EPOCH_SHARE = 16
"""Work may take so small a part of an epoch: even six times as long as on average, it is done before the last ticket ends."""


def check(admission: AdmissionSection) -> list[str]:
    """Warnings, one line each.

    Raises:
        ConfigError: no node could be a member, or a proof of work would expire before it is found.
    """
    for peer in admission.members:
        try:
            public_key_of(peer)
        except ValueError as error:
            raise ConfigError(
                f"admission.members: must be peer ids, got {peer!r}; a node prints its own with `starling status --json`"
            ) from error
    return _work(admission) if admission.kind == "open" and admission.bits else []


def expected_s(admission: AdmissionSection) -> float:
    """Seconds that one core needs for a ticket, on average."""
    return float(2**admission.bits) * admission.memory_kib / KIB_PER_S


def _work(admission: AdmissionSection) -> list[str]:
    takes = expected_s(admission)
    work = f"admission.bits: {admission.bits} bits of {admission.memory_kib} KiB"
    if takes > admission.epoch_s / EPOCH_SHARE:
        raise ConfigError(
            f"{work} take a core about {takes:,.0f} s, must be within a sixteenth of admission.epoch_s = {admission.epoch_s:g}; "
            f"try `--set admission.bits={_affordable(admission)}`"
        )
    return [f"{work} take every member about {takes / 60:.0f} min an epoch"] if takes > LONG_S else []


def _affordable(admission: AdmissionSection) -> int:
    tries = admission.epoch_s / EPOCH_SHARE * KIB_PER_S / admission.memory_kib
    return max(1, int(tries).bit_length() - 1)
