"""A node in production: libp2p, an engine process, a control socket, signals. `starling run` ends here."""

import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

import trio

from starling.gossip.errors import ConfigError
from starling.node.admission.issue import take_up
from starling.node.config.schema import NodeConfig
from starling.node.daemon.app import Node
from starling.node.daemon.context import Machine, NodeSetup, SecondNodes
from starling.node.daemon.engine.client import open_engine
from starling.node.daemon.events import Events
from starling.node.daemon.observe.control_commands import carry_out
from starling.node.daemon.observe.control_server import ControlServer
from starling.node.daemon.observe.final import FinalWriter, first_error
from starling.node.daemon.observe.recorder import Recorder, RoundLog, totals
from starling.node.daemon.observe.resources import ResourceMonitor
from starling.node.daemon.observe.snapshot import take_snapshot
from starling.node.identity import Identity
from starling.node.interfaces import Reporter, TaskStatus
from starling.node.net.api import Network
from starling.node.net.libp2p import open_network
from starling.node.platform import ENDING, HANGUP
from starling.node.status.record import RECORD_NAME
from starling.node.storage.log import open_log
from starling.node.storage.run_dir import RunDir

Listening = Callable[[tuple[str, ...]], None]


def run(
    run_dir: RunDir, *, until_stdin_closes: bool = False, on_listening: Listening | None = None, seconds: SecondNodes | None = None
) -> int:
    """Run the node in `run_dir` until it has finished, its owner ends it, or a signal comes (SIGINT, SIGTERM, SIGHUP).

    `until_stdin_closes`: also end when standard input does, so that a parent leaves no orphans. `on_listening` is called with our addresses
    once peers can reach us and the engine has taken the manifest and the data. `seconds` as of `Machine`.

    -> the exit status of the process: 0, or 129 after a SIGHUP, as a shell reports a command whose terminal was closed.

    Raises ConfigError: a file of the directory is missing or wrong; GossipError: the node cannot go on.
    """
    config = run_dir.read_config()
    identity = Identity.load_or_create(run_dir.key)
    manifest, invite = run_dir.read_manifest(), run_dir.read_invite()
    if manifest is None and invite is None:
        raise ConfigError(f"--dir: {run_dir.path} holds no manifest and no invite; start with `starling join INVITE`")
    admitted = take_up(invite, identity)
    # a directory of an earlier version: the invite is now bound to this identity, so its key is no longer needed
    if invite is not None and invite.bearer:
        run_dir.write_invite(replace(invite, chain=admitted, bearer=b""))
    with open_log(run_dir.path, peer_id=identity.peer_id, run_id=f"{time.time_ns() // 1_000_000:x}") as log:
        events = Events(log, clock=time.time)
        setup = NodeSetup(
            identity,
            config,
            run_dir.swarm(),
            store=run_dir,
            chain=admitted,
            machine=Machine(
                partial(node_network, identity, config, run_dir),
                open_engine,
                time.time,
                sensors=ResourceMonitor(run_dir.path),
                seconds=seconds,
            ),
        )
        gc.freeze()  # otherwise a full collection walks over all modules and blocks the event loop for 70 ms
        try:
            return trio.run(_run, setup, events, run_dir, until_stdin_closes, on_listening)
        except BaseExceptionGroup as group:
            raise first_error(group) from group


@asynccontextmanager
async def node_network(identity: Identity, config: NodeConfig, run_dir: RunDir, report: Reporter) -> AsyncIterator[Network]:
    """Listen on the config's addresses, first with the port of the last run, so that invites stay valid after a restart."""
    opened = partial(
        open_network,
        identity.seed,
        announce=config.announce,
        limits=config.limits,
        report=report,
        up_bytes_per_s=config.up_bytes_per_s,
        down_bytes_per_s=config.down_bytes_per_s,
        relay=config.relay,
    )
    last = run_dir.with_kept_port(config.listen)
    async with AsyncExitStack() as stack:
        try:
            network = await stack.enter_async_context(opened(listen=last))
        except ConfigError:
            if last == config.listen:
                raise
            report.event("port_taken", "the port of the last run is taken; listening on another", level="warning")
            network = await stack.enter_async_context(opened(listen=config.listen))
        if not config.announce:
            run_dir.keep_port(network.addresses)
        yield network


async def _run(setup: NodeSetup, events: Events, run_dir: RunDir, until_stdin_closes: bool, on_listening: Listening | None) -> int:
    node = Node(setup, events)
    snapshot = partial(take_snapshot, node)
    final = FinalWriter(run_dir, node.progress, snapshot, events.changes, run_dir.last_final())
    signals: list[int] = []
    async with trio.open_nursery() as nursery:
        try:
            await nursery.start(ControlServer(run_dir.path, snapshot, partial(carry_out, node), events.changes).run)
        except OSError as error:
            events.event("no_control_socket", f"no control socket in {run_dir.path}: {error.strerror}", level="error")
        run_dir.drop_final()
        await nursery.start(_stop_on_signals, node, signals, nursery.cancel_scope)
        if until_stdin_closes:
            nursery.start_soon(_stop_with_stdin, node)
        nursery.start_soon(final.serve)
        nursery.start_soon(Recorder(setup.config.record, run_dir.path / RECORD_NAME, snapshot, events).serve)
        nursery.start_soon(RoundLog(partial(totals, node), partial(events.line, "round")).serve)
        if setup.config.metrics.listen:
            from starling.node.daemon.observe.metrics import MetricsService  # noqa: PLC0415 — its library is large, and rarely needed

            nursery.start_soon(MetricsService(setup.config.metrics.listen, snapshot, events).serve)
        if on_listening is not None:
            nursery.start_soon(_announce, node, on_listening)
        with final:
            await node.run()
        nursery.cancel_scope.cancel()
    return 128 + HANGUP if HANGUP is not None and HANGUP in signals else 0


async def _announce(node: Node, on_listening: Listening) -> None:
    on_listening(await node.ready())


async def _stop_on_signals(
    node: Node, signals: list[int], scope: trio.CancelScope, task_status: TaskStatus = trio.TASK_STATUS_IGNORED
) -> None:
    """Stop in order at the first signal, which is added to `signals`; cancel `scope` at the second."""
    with trio.open_signal_receiver(*ENDING) as receiver:
        task_status.started()
        async for number in receiver:
            if signals or not node.is_listening:
                scope.cancel()
            signals.append(number)
            node.stop()


async def _stop_with_stdin(node: Node) -> None:
    """Stop in order at the end of standard input."""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        while await stdin.receive_some(4096):
            pass
    node.stop()
