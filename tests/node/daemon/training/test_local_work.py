"""Local work: an engine with a whole model, and a stage of a crew."""

from types import SimpleNamespace

from starling.node.daemon.training.local_work import EngineWork
from starling.node.extras.crew.daemon.work import CrewWork
from starling.node.rpc import calls
from starling.node.status.snapshot import EngineFigures
from tests.harness.virtual import virtual


class Engine:
    """Carries out calls in no time."""

    def __init__(self):
        self.calls = []

    async def call(self, request):
        self.calls.append(request)
        if isinstance(request, calls.Train):
            return calls.Trained(request.round, EngineFigures(request.steps), 0.0)
        return calls.Evaluated(0.5, 0.7, 8)


@virtual
async def test_a_node_with_a_whole_model_has_its_engine_do_everything():
    engine, grant = Engine(), calls.Train(3, 20)
    work = EngineWork(engine)
    assert (await work.train(grant)).round == 3
    assert (await work.evaluate(4)).value == 0.5
    assert engine.calls == [grant, calls.Evaluate(4)]


@virtual
async def test_a_stage_goes_to_the_round_in_which_its_crew_is():
    asked = []

    async def steps(*what):
        asked.append(("steps", *what))
        return 7

    async def evaluate(*what):
        asked.append(("evaluate", *what))

    engine = Engine()
    work = CrewWork(SimpleNamespace(steps=steps, evaluate=evaluate), EngineWork(engine), steps=20)
    assert (await work.train(calls.Train(3, 10))).round == 7
    assert engine.calls == [calls.Train(7, 10)], "it freezes in that round"
    assert await work.evaluate(8) is None
    assert asked == [("steps", 3, 10), ("evaluate", 8, 20)]
