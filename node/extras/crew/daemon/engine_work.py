"""Converts the work that a crew's machine requests into engine calls, and replies into the machine's results."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from starling.gossip.pipeline.crew_commands import (
    Abandon,
    ApplyStep,
    Computed,
    DoTask,
    Result,
    States,
    Summarize,
    Unfit,
    Unusable,
    UseState,
    Work,
)
from starling.gossip.pipeline.stage import Part
from starling.node.rpc import calls


def request_of(work: Work) -> calls.Request:
    """Return the call for work that is the engine's."""
    return _REQUESTS[type(work)](work)


def result_of(reply: calls.Reply) -> Result:
    """Return a reply as the machine's result."""
    match reply:
        case calls.Pointed(step=step, points=points):
            return States(step, points)
        case calls.Advanced():
            return Computed(reply.payload, reply.labels, reply.over)
        case calls.Summed():
            return Part(reply.squares, reply.loss, reply.value, reply.samples, reply.fine)
        case calls.Refused(kind="peer", reason=reason):
            return Unfit(reason)
        case calls.Done():
            return None
    return Unusable(str(reply))


def _task(work: DoTask) -> calls.Request:
    if work.way == "F":
        return calls.Advance(work.crew, work.step, work.micro, work.payload, work.labels, work.evaluate)
    return calls.Retreat(work.crew, work.step, work.micro, work.payload)


_REQUESTS: Mapping[type[Work], Callable[[Any], calls.Request]] = MappingProxyType(
    {
        UseState: lambda work: calls.Point(work.action, work.crew, work.step, work.state),
        DoTask: _task,
        Summarize: lambda _work: calls.Summary(),
        ApplyStep: lambda work: calls.Finish(work.round, work.scale, work.loss, work.fine, work.steps),
        Abandon: lambda _work: calls.Abandon(),
    }
)
