"""The table of calls of an opened engine. It is independent of the task: what trains the replica drives it.

A driver does local steps while `granted` is above 0, says so by `stepped`, and has calls answered by `handle` in between. While a gradient
is computed the model does not change: calls that only read it may be answered then (`BESIDE_GRADIENT`).
"""

from collections.abc import Callable
from pathlib import Path

from starling.gossip.errors import LocalProtocolError
from starling.node.engine.clock_rounds import ClockRounds
from starling.node.engine.consensus import ConsensusDistance
from starling.node.engine.exchange.api import Exchange, Handlers, Machine, Site, Vectors
from starling.node.engine.exchange.catalogue import exchange_of
from starling.node.engine.late_join import Fetched, Offered
from starling.node.engine.local.trainer import Trainer
from starling.node.engine.privacy.csprng import Csprng
from starling.node.engine.rounds import Report, Rounds, StepsRounds
from starling.node.engine.snapshot import Shelves
from starling.node.engine.store import Store
from starling.node.engine.vectors import FrozenVectors, GradientWindow, LiveVectors, Noised, Outgoing, Plain
from starling.node.rpc import calls
from starling.node.status.snapshot import EngineFigures

BACKGROUND_CALLS = calls.Offer | calls.Answer | calls.Apply | calls.Commit | calls.Drop | calls.ReadChunk


class GossipSession:
    """Serves the calls about one node's replica between Open and Stop: exchanges, rounds, late joining, files.

    Attributes:
        answers: by the type of a call, what answers it.
    """

    def __init__(self, exchange: Exchange, rounds: Rounds, store: Store, distances: ConsensusDistance, table: Handlers) -> None:
        self.exchange, self.rounds, self.store, self.distances = exchange, rounds, store, distances
        self.replica = exchange.replica
        own: Handlers = {calls.Settle: self.settle, calls.Revoke: self.revoke}
        self.answers = {**table, **exchange.handlers(), **rounds.handlers(), **store.handlers(), **own}

    @property
    def granted(self) -> float:
        """Return the local steps left to do; 0: serve calls; inf: until further notice."""
        return self.rounds.granted

    @property
    def round(self) -> int:
        """Return the round that is done, or is next."""
        return self.rounds.round

    def opened(self, trainer: Trainer, *, resumed: bool) -> calls.Opened:
        """Return the reply to Open. `resumed`: from a checkpoint."""
        facts, best = trainer.facts, self.store.best
        return calls.Opened(
            len(self.replica.x),
            trainer.schema,
            facts.metric,
            facts.higher_is_better,
            facts.device,
            facts.samples,
            resumed,
            self.round,
            EngineFigures(trainer.steps, epsilon=trainer.figures().epsilon),
            best.value,
            best.round,
            facts.crew.batches,
            facts.crew.most_state_bytes,
            self.store.damaged,
        )

    def handle(self, request: calls.Request) -> calls.Reply | None:
        """Answer a call; None: the reply comes out of `stepped`. Raises errors of the tree in `starling.gossip.errors`."""
        answer = self.answers.get(type(request))
        if answer is None:
            raise LocalProtocolError(f"{request.__struct_config__.tag}: this engine does not do that")
        reply: calls.Reply | None = answer(request)
        return reply

    def stepped(self, loss: float | None, seconds: float) -> calls.Trained | None:
        """Count a local step; as `Rounds.stepped`."""
        self.exchange.effort.trained(seconds)
        return self.rounds.stepped(loss)

    def settle(self, call: calls.Settle) -> calls.Done:
        """Close an edge in order."""
        self.exchange.forget(call.peer)
        self.rounds.book(call.peer)
        self.replica.settle(call.peer)
        return calls.Done()

    def revoke(self, call: calls.Revoke) -> calls.Done:
        """Delete a lost peer's flow, and its vector since the last Mix. What it committed stays in the model."""
        self.exchange.forget(call.peer)
        self.distances.forget(call.peer)
        self.rounds.book(call.peer)
        return calls.Done(dominated=self.replica.revoke(call.peer))


def session_of(
    open_request: calls.Open,
    trainer: Trainer,
    csprng: Csprng,
    window: GradientWindow,
    report: Report,
    clock: Callable[[], float],
    work: Callable[[], float],
) -> tuple[GossipSession, bool]:
    """Return the session around a trainer, and whether it resumes from a checkpoint.

    `clock` gives seconds, `work` processor seconds of the calling thread. Raises ConfigError: manifest, settings or checkpoint cannot be
    used.
    """
    replica, pace, schema = trainer.replica, open_request.manifest.pace, trainer.schema
    store = Store(open_request, trainer, schema)
    resumed = store.resumed()
    deviation = open_request.privacy.exchange_noise
    outgoing: Outgoing = Noised(csprng, deviation) if deviation else Plain()
    distances = ConsensusDistance()

    def exchange_on(vectors: Vectors) -> Exchange:
        site = Site(open_request, vectors, trainer.rates, trainer.losses(), distances, Machine(work, csprng.uniform))
        return exchange_of(replica, site)

    rounds: Rounds
    if pace.kind == "clock":
        live = LiveVectors(replica, outgoing, trainer.rates.phase, lambda: trainer.steps, window, pace.local_steps)
        exchange = exchange_on(live)
        rounds = ClockRounds(trainer, live, report, distances.figure, clock)
    else:
        frozen = FrozenVectors(replica, outgoing, pace.local_steps)
        exchange = exchange_on(frozen)
        rounds = StepsRounds(trainer, exchange, frozen, report, distances.figure, clock)

    def forget_all() -> None:
        exchange.forget_all()
        distances.forget_all()

    folder = Path(open_request.checkpoint).parent if open_request.checkpoint else None
    shelves = Shelves(folder, clock)
    offered = Offered(trainer, rounds, outgoing, schema, shelves)
    fetched = Fetched(trainer, rounds, schema, forget_all)
    store.round, store.saved = (lambda: rounds.round), shelves.release_idle
    rounds.begin(resumed or 0)
    table = {**trainer.handlers(), **offered.handlers(), **fetched.handlers()}
    return GossipSession(exchange, rounds, store, distances, table), resumed is not None
