"""Plans of whole files: memory, which machines train, remedies, and one line for errors."""

import json

import msgspec
import pytest
import torch
from torch.nn.functional import dropout, gelu

from starling.node.cli import examples
from starling.node.cli.main import main
from starling.node.config import memory_estimate
from starling.node.plan import memory
from starling.node.plan.decide import block_costs, plan
from starling.node.plan.schema import LinkSection, MachineSection, ModelSection, TrainSection, World, line, load
from starling.node.tasks.gpt import Block
from tests.harness.cli_doubles import refused

LLAMA = ModelSection(layers=32, hidden=4096, heads=32, vocab=32_000, sequence=2048)
SMALL = ModelSection(layers=8, hidden=1024, heads=16, vocab=32_000, sequence=1024)
TEXT = """
[model]
layers = 8
hidden = 1024
heads = 16
vocab = 32000
sequence = 1024

[[machine]]
name = "a"
memory_gb = 24
tflops = 50
up_mbit = 100
down_mbit = 100

[[machine]]
name = "b"
memory_gb = 4
"""


def machine(name, gb, tflops=50.0, mbit=100.0):
    return MachineSection(name=name, memory_gb=gb, tflops=tflops, up_mbit=mbit, down_mbit=mbit)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.toml"
    path.write_text(TEXT)
    return path


def test_the_published_number_of_parameters_is_reproduced():
    """LLaMA's 7 B."""
    assert memory.parameters(LLAMA) == 6_704_594_944


def kept(block, x):
    """Return the numbers that autograd retains per input number; each storage once, parameters and input excluded."""
    seen = {}

    def pack(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = block(x)
    assert out.requires_grad
    for own in (x, *block.parameters()):
        seen.pop(own.untyped_storage().data_ptr(), None)
    return sum(seen.values()) / x.nbytes


@pytest.mark.parametrize("t", [64, 256, 512])
def test_planned_activation_bytes_match_a_blocks(t):
    """Fifteen times its input where attention is fused, for any length."""
    assert kept(Block(64, 4), torch.randn(2, t, 64, requires_grad=True)) == pytest.approx(memory.KEPT, rel=0.02)


class Scored(Block):
    """Attention computed explicitly, which retains its scores, with dropout."""

    dropped = 0.0

    def forward(self, x):
        m, t, w = x.shape
        q, k, v = self.attend(self.norm_1(x)).view(m, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT * (w // self.heads) ** -0.5).masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -1e9)
        weights = dropout(scores.softmax(-1), self.dropped) if self.dropped else scores.softmax(-1)
        x = x + self.project((weights @ v).transpose(1, 2).reshape(m, t, w))
        return x + self.contract(gelu(self.expand(self.norm_2(x))))


@pytest.mark.parametrize(
    ("t", "scores", "found"), [(128, "stored", 19.2), (512, "stored", 31.5), (128, "dropout", 27.2), (512, "dropout", 63.5)]
)
def test_planned_score_bytes_match_a_blocks(t, scores, found):
    """Those without dropout are the reference's. It counts two numbers per score as memory of a mask; with dropout there are three."""
    block = Scored(128, 4)
    block.dropped = 0.1 if scores == "dropout" else 0.0
    measured = kept(block, torch.randn(2, t, 128, requires_grad=True))
    assert measured == pytest.approx(found, abs=0.2)
    model = ModelSection(layers=1, hidden=128, heads=4, vocab=10, sequence=t)
    planned = memory.activations(model, TrainSection(micro_batch=2, scores=scores), 1, 1) / (4 * 2 * t * 128)
    assert planned == pytest.approx(measured, rel=0.02)


def test_on_a_home_line_a_billion_parameters_are_exchanged_every_254_steps():
    """20 Mbit/s up, 2 s per step; 106 with int4 both ways. This is the period of each coordinate, in any number of parts."""
    model = ModelSection(layers=80, hidden=1024, heads=8, vocab=1000, sequence=64)
    for each, steps in ((1.27, 254), (0.53, 106)):
        world = World(model=model, train=TrainSection(exchange_bytes=each), machine=(machine("home", 200, mbit=20.0),))
        (member,) = plan(world).members
        assert member.exchange_s / 2.0 * 1e9 / memory.parameters(model) == pytest.approx(steps, rel=0.01)


def test_stages_need_the_memory_of_the_whole_plus_a_constant_per_process():
    train, reserve = TrainSection(), 10**9
    whole = memory.needed(SMALL, train, 0, 8, 1, reserve)
    parts = [memory.needed(SMALL, train, first, first + 2, 1, reserve) for first in (0, 2, 4, 6)]
    assert sum(parts) == whole + 3 * reserve


@pytest.mark.parametrize(
    ("given", "change", "less"),
    [
        ({}, {"recompute": True}, True),
        ({"mix": "dsgd"}, {"optimizer": "sgd"}, True),
        ({"optimizer": "momentum"}, {"optimizer": "sgd"}, True),
        ({"optimizer": "momentum"}, {"mix": "dsgd"}, True),
        ({"optimizer": "momentum"}, {"flows": "bfloat16"}, True),
        ({"optimizer": "momentum"}, {"degree": 3}, True),
        ({}, {"moments": "int8"}, True),
        ({}, {"scores": "stored"}, False),
        ({}, {"scores": "dropout"}, False),
    ],
)
def test_settings_change_the_planned_memory(given, change, less):
    needed = [memory.needed(SMALL, TrainSection(**keys), 0, 8, 1, 0) for keys in (given, given | change)]
    assert (needed[1] < needed[0]) == less


@pytest.mark.parametrize("change", [{"mix": "dsgd"}, {"flows": "bfloat16"}, {"degree": 1}])
def test_adamw_holds_no_flows(change):
    """It averages its moments, which it has anyway."""
    one, other = (memory.needed(SMALL, TrainSection(**keys), 0, 8, 1, 0) for keys in ({}, change))
    assert one == other


def test_machines_that_fit_the_model_are_members_and_the_rest_form_a_crew():
    world = World(
        model=SMALL, machine=(machine("large", 40), machine("one", 4), machine("two", 4), machine("three", 3), machine("tiny", 1))
    )
    found = plan(world)
    assert [it.name for it in found.members] == ["large"]
    (crew,) = found.crews
    assert crew.stages[0].first == 0
    assert crew.stages[-1].end == SMALL.layers
    assert [it.first for it in crew.stages[1:]] == [it.end for it in crew.stages[:-1]]
    assert all(it.needed_bytes <= it.memory_bytes for it in crew.stages)
    assert "tiny" in {it.name for it in found.unused}
    (large,) = found.members
    assert large.step_s == pytest.approx(8 * sum(block_costs(world)) / (50e12 * 0.35))
    assert large.exchange_s == pytest.approx(8 * 1.27 * memory.parameters(SMALL) / 100e6)


def test_a_slow_line_decides_and_a_fast_link_between_two_is_taken():
    slow = World(model=SMALL, machine=(machine("one", 4, mbit=5.0), machine("two", 4, mbit=5.0)))
    (crew,) = plan(slow).crews
    assert crew.decides == "lines"
    assert crew.step_s_of_twice_the_rates < 0.7 * crew.step_s
    fast = msgspec.structs.replace(
        slow, machine=(machine("one", 4), machine("two", 4)), link=(LinkSection(between=("two", "one"), ms=1.0, mbit=50.0),)
    )
    assert line(fast, 0, 1) == (0.001, 50e6 / 8)
    assert plan(fast).crews[0].step_s < 0.2 * crew.step_s


def test_each_remedy_lets_one_more_machine_train():
    train = TrainSection(micro_batch=4, degree=8, optimizer="momentum")
    world = World(model=SMALL, train=train, machine=(machine("a", 13.0),))
    assert not plan(world).members
    cures = plan(world).cures
    assert len(cures) >= 4
    for cure in cures:
        path, _, value = cure.partition(" = ")
        key = path.removeprefix("train.")
        if path.startswith("train."):
            changed = msgspec.structs.replace(world, train=msgspec.structs.replace(world.train, **{key: json.loads(value)}))
            assert plan(changed).members, cure
    assert cures[-1].startswith("machine.memory_gb = ")


def test_the_command_says_who_trains_and_ends_with_1_if_nobody_can(file, capsys):
    assert main(["plan", "plan.toml"]) == 0
    said = capsys.readouterr().out
    assert "members: each trains the whole model" in said
    assert "must be given" in said
    assert main(["plan", "plan.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [it["name"] for it in found["members"]] == ["a"]
    assert found["members"][0]["exchange_steps"] > 0
    file.write_text(TEXT.replace("memory_gb = 24", "memory_gb = 2"))
    assert main(["plan", "plan.toml"]) == 1
    assert "any of these lets one machine more train" in capsys.readouterr().out


def test_without_machines_the_plan_is_for_this_one(file, capsys):
    file.write_text(TEXT.partition("[[machine]]")[0].replace("layers = 8", "layers = 1").replace("32000", "10"))
    assert main(["plan", "plan.toml"]) == 0
    assert "this machine" in capsys.readouterr().out


@pytest.mark.slow
def test_a_manifests_task_is_planned_for_this_machine_by_timing_its_operations(tmp_path, capsys, monkeypatch):
    (tmp_path / "m.toml").write_text('[task]\nkind = "digits"\n')
    given = ["plan", "--manifest", str(tmp_path / "m.toml"), "--json"]
    assert main(given) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == 4810
    assert [it["name"] for it in found["members"]] == ["this machine"]
    assert 0.0 < found["members"][0]["step_s"] < 1.0
    monkeypatch.setattr(memory_estimate, "here", lambda _config: 10**8)
    assert main(given) == 1
    (unused,) = json.loads(capsys.readouterr().out)["unused"]
    assert "100 MB are free" in unused["why"]


def test_a_manifest_that_cannot_be_planned_is_one_line(file, tmp_path, capsys):
    (tmp_path / "m.toml").write_text('[task]\nkind = "mine:Task"\n')
    refused(capsys, ["plan", "--manifest", "m.toml"], "task.kind", "starling task check mine:Task")
    refused(capsys, ["plan", "plan.toml", "--manifest", "m.toml"], "--manifest", "leave out FILE")
    refused(capsys, ["plan"], "needs FILE", "starling examples plan-crowd")


def test_machines_and_links_may_have_files_of_their_own(file, tmp_path, capsys):
    (tmp_path / "m.toml").write_text('[[machine]]\nname = "x"\nmemory_gb = 80\n[[machine]]\nname = "y"\nmemory_gb = 80\n')
    (tmp_path / "l.toml").write_text('[[link]]\nbetween = ["x", "y"]\nms = 1\nmbit = 10\n')
    assert main(["plan", "plan.toml", "--machines", "m.toml", "--links", "l.toml", "--json"]) == 0
    assert [it["name"] for it in json.loads(capsys.readouterr().out)["members"]] == ["x", "y"]


def test_the_example_has_a_member_and_a_crew(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(examples.find("plan-crowd").read_text())
    found = plan(load(path))
    assert [it.name for it in found.members] == ["anna"]
    assert [stage.name for stage in found.crews[0].stages] == ["dave", "carla"]


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ("layers = 8", "layers = 0", ["model.layers", "0"]),
        ("layers = 8\n", "", ["model.layers: is missing", "starling examples plan-crowd"]),
        ("layers = 8", "lairs = 8", ["model.layers: is missing"]),
        ("hidden = 1024", "hidden = 1024\nwidth = 3", ["model.width", "no such key"]),
        ('name = "b"', 'name = "a"', ["machine[1].name", "'a'"]),
        ("up_mbit = 100", "up_mbit = 0", ["machine[0].up_mbit"]),
        ("up_mbit = 100", "up_mbit = nan", ["machine[0].up_mbit"]),
        ("[[machine]]", "[machines]", ["machine"]),
        ("[model]", "[modell]", ["modell"]),
        ("[model]", "[train]\nmix = 'best'\n[model]", ["train.mix", "dsgd, pet", "'best'"]),
        ('[[machine]]\nname = "b"', '[[link]]\nbetween = ["a", "z"]\nms = 1\nmbit = 1\n[[machine]]\nname = "b"', ["link[0]", "'z'"]),
        ('[[machine]]\nname = "b"', '[[link]]\nbetween = ["a", "a"]\nms = 1\nmbit = 1\n[[machine]]\nname = "b"', ["twice"]),
        ("[model]", "ms = -1\n[model]", ["ms"]),
    ],
)
def test_an_invalid_plan_file_gives_one_line_that_names_the_key(was, now, words, file, capsys):
    assert was in TEXT
    file.write_text(TEXT.replace(was, now, 1))
    refused(capsys, ["plan", "plan.toml"], *words)


def test_too_many_machines_are_refused(file, capsys):
    many = "".join(f'[[machine]]\nname = "m{number}"\nmemory_gb = 1\n' for number in range(257))
    file.write_text(TEXT.partition("[[machine]]")[0] + many)
    refused(capsys, ["plan", "plan.toml"], "at most 256", "257")
