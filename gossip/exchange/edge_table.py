"""Transitions of one edge and of a round of exchanges, as data: what the machines do, for the documentation and for tests to compare with.

A row says: in `state`, on `event`, the engine gets `calls` and the next state is `to`. Events in lower case are method calls of this end,
those with a capital are messages of the peer; "larger incarnation" is any message of one, "same incarnation" any message that agrees on
ours. Everything else changes no state and asks for no engine call. `tables` is the text in docs/protocol.md.
"""

from __future__ import annotations

from typing import NamedTuple

from starling.gossip.exchange.commands import Role


class Transition(NamedTuple):
    """One row.

    Args:
        role: which end.
        state: of its transaction, before.
        event: what happens.
        to: state after it.
        calls: types of the engine calls that come of it, in order.
    """

    role: Role
    state: str
    event: str
    to: str
    calls: tuple[str, ...] = ()


def _void(role: Role, states: tuple[str, ...]) -> tuple[Transition, ...]:
    events = ("larger incarnation", "reset")
    return tuple(Transition(role, state, event, "idle", ("Revoke",)) for state in states for event in events)


TRANSITIONS: tuple[Transition, ...] = (
    Transition("initiator", "idle", "begin", "greeting"),
    Transition("initiator", "idle", "begin", "offering", ("Offer",)),
    Transition("initiator", "greeting", "same incarnation", "offering", ("Offer",)),
    Transition("initiator", "greeting", "larger incarnation", "offering", ("Revoke", "Offer")),
    Transition("initiator", "greeting", "larger incarnation", "greeting", ("Revoke",)),
    Transition("initiator", "greeting", "reset", "greeting", ("Revoke",)),
    Transition("initiator", "greeting", "abort", "idle"),
    Transition("initiator", "greeting", "close", "idle"),
    Transition("initiator", "greeting", "same incarnation", "idle", ("Settle",)),
    Transition("initiator", "offering", "offered", "asking"),
    Transition("initiator", "offering", "failed", "idle"),
    Transition("initiator", "asking", "Response", "applying", ("Apply",)),
    Transition("initiator", "asking", "Busy", "idle", ("Drop",)),
    Transition("initiator", "applying", "applied", "idle"),
    Transition("initiator", "applying", "failed", "idle", ("Drop",)),
    *(
        Transition("initiator", state, event, "idle", calls)
        for state in ("offering", "asking")
        for event, calls in (("abort", ("Drop",)), ("close", ("Drop",)), ("Close", ("Drop", "Settle")))
    ),
    Transition("initiator", "idle", "Close", "idle", ("Settle",)),
    Transition("initiator", "idle", "Closed", "idle", ("Settle",)),
    *_void("initiator", ("idle", "offering", "asking", "applying")),
    Transition("responder", "idle", "Request", "asked"),
    Transition("responder", "asked", "accept", "answering", ("Answer",)),
    Transition("responder", "asked", "refuse", "idle"),
    Transition("responder", "answering", "answered", "answered"),
    Transition("responder", "answering", "failed", "idle"),
    Transition("responder", "answered", "Ack", "idle", ("Commit",)),
    Transition("responder", "answered", "Request", "asked", ("Commit",)),
    Transition("responder", "answered", "Request", "asked", ("Drop",)),
    Transition("responder", "answering", "Request", "asked", ("Drop",)),
    Transition("responder", "asked", "close", "idle"),
    Transition("responder", "answering", "close", "idle", ("Drop",)),
    *(
        Transition("responder", state, event, "idle", calls)
        for state, event, calls in (
            ("idle", "Close", ("Settle",)),
            ("idle", "Closed", ("Settle",)),
            ("asked", "Close", ("Settle",)),
            ("answering", "Close", ("Drop", "Settle")),
            ("answered", "Close", ("Commit", "Settle")),
            ("answered", "Close", ("Drop", "Settle")),
            ("answered", "Closed", ("Commit", "Settle")),
            ("answered", "Closed", ("Drop", "Settle")),
        )
    ),
    *_void("responder", ("idle", "asked", "answering", "answered")),
)

DECISIONS: tuple[tuple[str, str, str], ...] = (
    ("below r", "Reject late", "Reject late"),
    ("r", "Defer", "Accept"),
    ("r + 1 … r + max_lead", "Defer", "Defer"),
    ("above", "Reject early", "Reject early"),
)
"""Steps pace, at round r: (round of a request, decision while computing, decision while exchanging). `Rounds.decide` has the exceptions."""


def tables() -> str:
    """Both tables in Markdown; states that have the same row are joined."""
    lines = ["| end | state | event | next state | engine calls |", "|---|---|---|---|---|"]
    joined: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for it in TRANSITIONS:
        joined.setdefault((it.role, it.event, it.to, it.calls), []).append(it.state)
    for (role, event, to, calls), states in joined.items():
        lines.append(f"| {role} | {', '.join(states)} | {event} | {to} | {', '.join(calls)} |")
    lines += ["", "| round of a request | while computing r | while exchanging r |", "|---|---|---|"]
    lines += [f"| {requested} | {computing} | {exchanging} |" for requested, computing, exchanging in DECISIONS]
    return "\n".join(lines) + "\n"
