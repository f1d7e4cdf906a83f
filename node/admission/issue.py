"""Issue invitations, each number once, and accept one. The only part of admission that touches files: `issued/` of a run directory.

A file per number, made exclusively, so two commands at once cannot issue the same number; it holds the invite. A number may be issued again
when its invitation has ended.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from starling.gossip.errors import ConfigError
from starling.node.admission import chain as chains
from starling.node.admission import invite as invites
from starling.node.admission.chain import MAX_NUMBER, Chain, Terms
from starling.node.admission.invite import Invite
from starling.node.identity import Identity, peer_id_of, public_key_of

_ASK = "ask a member for the line that `starling invite` prints, then `starling join INVITE`"


@dataclass(frozen=True, slots=True)
class Issued:
    """An invitation that was issued: its number, and how many more this node may issue (`left`; None for the creator)."""

    invite: Invite
    number: int
    left: int | None

    @property
    def until(self) -> datetime:
        """Return the time at which the invitation expires."""
        return datetime.fromtimestamp(chains.not_after_ms(self.invite.chain) / 1000, UTC)


def take_up(invite: Invite | None, identity: Identity) -> Chain:
    """Return the invitation in an invite, bound to this node; empty without one. Raises ConfigError: it is for another peer."""
    if invite is None or not invite.chain:
        return ()
    if invite.bearer:
        if Identity.from_seed(invite.bearer).peer_id != peer_id_of(invite.chain[-1].invitee):
            raise ConfigError(f"invite: its key does not fit its invitation; {_ASK}")
        return chains.bind(invite.chain, invite.bearer, identity.peer_id, invite.swarm)
    if invite.chain[-1].holder != identity.peer_id:
        raise ConfigError(f"invite: it is for {invite.chain[-1].holder}, this node is {identity.peer_id}; {_ASK}")
    return invite.chain


def give(
    folder: Path, terms: Terms, inviter: Identity, above: Chain, bootstrap: tuple[str, ...], *, days: float, now_s: float, peer: str = ""
) -> Issued:
    """Return a new invitation for `days` > 0 from unix time `now_s` on, recorded in `folder`, which is `issued` of the inviter's run
    directory.

    The inviter is the creator, or the holder of `above`, which is empty for the creator; `peer` is the invitee, "" the first node that uses
    the invite. Raises ConfigError: the inviter has no more to give, `peer` is no peer id, or the folder cannot be written.
    """
    if not 0 < days <= 3650:
        raise ConfigError(f"--days: must be > 0 and <= 3650, got {days:g}")
    creator = inviter.peer_id == terms.creator
    if not creator and not above:
        raise ConfigError(f"invite: this node has no invitation itself; {_ASK}")
    if not creator and not above[-1].depth:
        raise ConfigError(
            f"invite: this node is at the end of a chain of invitations (admission.depth = {terms.depth}) and cannot invite; ask "
            f"{chains.inviters(above, terms.creator)[-1]}, who runs `starling invite`"
        )
    try:
        if peer:
            public_key_of(peer)
    except ValueError as error:
        raise ConfigError(f"--for: {peer!r} is no peer id; a node prints its own with `starling status`") from error
    bearer = b"" if peer else os.urandom(32)
    invitee = peer or Identity.from_seed(bearer).peer_id
    quota = MAX_NUMBER if creator else above[-1].quota
    number, path = _free_number(folder, quota, now_s)
    chain = chains.invite(inviter, above, terms, invitee=invitee, number=number, not_after_ms=int((now_s + days * 86400.0) * 1000))
    invite = Invite(terms.swarm, bootstrap, chain, bearer)
    try:
        path.write_text(invites.encode(invite) + "\n")
    except OSError as error:
        raise ConfigError(f"invite: cannot write {path}: {error.strerror}") from error
    return Issued(invite, number, None if creator else quota - number - 1)


def _free_number(folder: Path, quota: int, now_s: float) -> tuple[int, Path]:
    """Return a number that no invitation in force has, with its file."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for number, chain in given(folder).items():
            if number < quota and chains.not_after_ms(chain) <= now_s * 1000:
                return number, folder / str(number)
        number = 1 + max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=-1)
        while number < quota:
            path = folder / str(number)
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                number += 1
            else:
                return number, path
    except OSError as error:
        raise ConfigError(f"invite: cannot write in {folder}: {error.strerror}") from error
    raise ConfigError(
        f"invite: all {quota} invitations of this node are issued (admission.quota); they are in {folder}, hand on an "
        "unused one, or ask the creator, who runs `starling invite`"
    )


def given(folder: Path) -> dict[int, Chain]:
    """Return the invitations in a folder, `issued` of a run directory, by number. Raises OSError: it cannot be read."""
    paths = sorted((path for path in folder.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    return {int(path.name): chain for path in paths if (chain := _chain(path))}


def _chain(path: Path) -> Chain:
    try:
        return invites.decode(path.read_text()).chain
    except (ConfigError, UnicodeDecodeError):
        return ()  # being written, or no invitation
