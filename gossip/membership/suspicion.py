"""Accusers of each suspect, and its time to answer, which is shorter the more members got no answer from it.

    time of a suspect = suspicion_s · stretch · (LONE - (LONE - 1) · log(a) / log(k + 1)),   between 1 and LONE

with `a` accusers, this node among them, of whom k + 1 are enough, k = min(ENOUGH, n - 2); 1 where k = 0. With few accusers the fault is
likely between them and the suspect; with enough of them it takes what a fixed time would. An accuser counts once, and can only shorten the
time to `suspicion_s`; a suspect that this node never met has no more. So that accusers are independent, a node tells others of a suspect
only after the suspect left a probe of its own unanswered.

Source: Dadgar, Phillips, Currey 2018 (arXiv:1707.00788), section on LHA-Suspicion, where LONE is 6 and ENOUGH 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log

from starling.gossip.membership.member_list import Member

LONE = 3.0  # with the factor 9 of an isolated node it takes 54 s by default to conclude that it is alone
ENOUGH = 3


def share(accusers: int, n: int) -> float:
    """Multiple of the shortest time that a suspect has with `accusers` >= 1 among n members, in [1, LONE]."""
    most = min(ENOUGH, n - 2)
    if most <= 0 or accusers > most:
        return 1.0
    return LONE - (LONE - 1.0) * log(accusers) / log(most + 1)


@dataclass(slots=True)
class Suspicions:
    """Accusers of this node's suspects."""

    _accusers: dict[str, set[str]] = field(default_factory=dict)

    def accuse(self, peer: str, accuser: str) -> None:
        """`accuser` found the suspect `peer` silent; of more than are enough none is remembered but this node."""
        accusers = self._accusers.setdefault(peer, set())
        if len(accusers) <= 2 * ENOUGH:
            accusers.add(accuser)

    def by(self, peer: str, accuser: str) -> bool:
        """Return whether `accuser` has accused `peer`."""
        return accuser in self._accusers.get(peer, ())

    def share(self, peer: str, n: int) -> float:
        """Multiple of the shortest time that this suspect has among n members."""
        return share(max(1, len(self._accusers.get(peer, ()))), n)

    def keep(self, members: Mapping[str, Member]) -> None:
        """Forget the accusers of those that are suspects no longer."""
        for peer in [peer for peer in self._accusers if peer not in members or members[peer].status != "suspect"]:
            del self._accusers[peer]
