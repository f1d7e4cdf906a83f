"""Scenario files: their meaning, and refusals before anything is computed."""

import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from starling.gossip.errors import ConfigError
from starling.node.cli.main import main
from starling.node.config import presets, toml
from starling.node.config.parts import convert
from starling.node.config.schema import AdmissionSection, Manifest
from starling.node.simulate import rules, sweep
from starling.node.simulate.schema import Scenario, joiners, manifest
from starling.node.simulate.sweep import cells

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("simulate-*.toml"))


def scenario(*assignments, text=""):
    return toml.apply_set(convert(toml.parse(text), Scenario), assignments)


def test_the_defaults_can_be_simulated():
    assert rules.check(cells(Scenario())) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_passes_its_check(path):
    loaded, found = sweep.read(path)
    rules.check(found)
    assert loaded.name != Scenario().name
    assert len(EXAMPLES) >= 4


def test_the_shown_scenario_is_an_equivalent_file():
    """`config show scenario` is a template: every key must be in it, those of inherited sections with their explanation."""
    shown = toml.render(Scenario())
    assert convert(toml.parse(shown), Scenario) == Scenario()
    assert "# concentration; smaller is more different" in shown


def test_each_node_has_its_own_shard_by_default():
    assert manifest(scenario("simulate.nodes=7")).partition.shards == 7
    agreed = manifest(scenario("simulate.nodes=7", "partition.shards=3", "robust.rule=nna", "overlay.rerank_every=4"))
    assert (agreed.partition.shards, agreed.robust.rule, agreed.overlay.rerank_every) == (3, "nna", 4)


def test_individual_problems_are_drawn_for_each_shard():
    agreed = manifest(scenario("task=quadratic", "simulate.nodes=5", "faults.join=1", "pace.rounds=10", "faults.churn_from=8"))
    assert agreed.task.params()["nodes"] == agreed.partition.shards == 7


def test_all_nodes_start_at_the_same_time():
    assert manifest(scenario("simulate.nodes=9", "pace.quorum=2")).pace.quorum == 9


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ((), 0),
        (("faults.join=2",), 200),
        (("faults.join=2", "faults.churn_from=90"), 20),
        (("faults.join=2", "faults.churn_from=10", "faults.churn_until=20"), 20),
        (("faults.join=2", "faults.churn_until=1000"), 200),
    ],
)
def test_integer_rates_of_joiners_are_deterministic(faults, expected):
    assert joiners(scenario("pace.rounds=100", *faults)) == expected


def test_rows_are_reserved_for_more_joiners_than_are_likely():
    """.03 per round for 600 rounds: 18 on average, with a standard deviation of 4.2."""
    room = joiners(scenario("pace.rounds=600", "faults.join=0.03"))
    assert 18 + 4 * 4.2 < room < 60


def preset(name, *assignments):
    return presets.load(Scenario, assignments=[f"preset={name}", *assignments])


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_scenario_with_a_preset_is_the_swarm_of_a_manifest_with_that_preset(name):
    """Key by key, since both engines know a swarm by its manifest only. Admission is not simulated: no proofs of work, no invitations."""
    assert rules.check(cells(preset(name))) == []
    agreed, created = manifest(preset(name)), presets.load(Manifest, assignments=[f"preset={name}"])
    for key in presets.PRESETS[name]:
        if not key.name.startswith("admission.") and key.name != "robust.kappa":  # of another rule
            assert attrgetter(key.name)(agreed) == attrgetter(key.name)(created) == key.value
    assert agreed.admission == AdmissionSection()


def test_file_values_override_the_preset_and_set_overrides_both(tmp_path):
    file = tmp_path / "scenario.toml"
    file.write_text('preset = "open"\n[pace]\nlocal_steps = 20\n[overlay]\nk = 9\n[robust]\nf = 3\n')
    loaded = presets.load(Scenario, file, ["overlay.k=8"])
    assert (loaded.pace.local_steps, loaded.overlay.k, loaded.robust.f, loaded.mix.kind) == (20, 8, 3, "gather")
    spelled = [
        f"{key.name}={key.value}"
        for key in presets.PRESETS["open"]
        if not key.name.startswith(("admission.", "robust.before", "robust.kappa"))
    ]
    assert manifest(preset("open")) == manifest(scenario(*spelled))


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["preset=open", "robust.f=1"], r"robust\.f: must be at least 2 with preset=open, got 1"),
        (["preset=open", "overlay.k=9"], r"robust\.f: must be at least a third of overlay\.k = 9 with preset=open"),
        (["preset=open", "byzantine_fraction=0.1"], r"byzantine_fraction: must be at least 0\.2 with preset=open, got 0\.1"),
        (["preset=open", "byzantine_fraction=0.35"], r"byzantine_fraction: cs_nnm tolerates at most 0\.25.*, got 0\.35"),
        (["preset=vouched", "mix.clip_norm=0"], r"mix\.clip_norm: must be above 0 and at most 1000 with preset=vouched, got 0"),
        (["preset=vouched", "byzantine_fraction=0.1"], r"byzantine_fraction: mix=pet has no rule against .*, must be 0, got 0\.1"),
        (["byzantine_fraction=0.1"], r"byzantine_fraction: mix=pet has no rule"),
    ],
)
def test_a_scenario_beyond_its_preset_s_or_rule_s_bound_is_refused(assignments, message):
    """With the error lines of a manifest, since nodes would refuse to run it."""
    with pytest.raises(ConfigError, match=message) as caught:
        rules.check(cells(presets.load(Scenario, assignments=assignments)))
    assert "\n" not in str(caught.value)


def test_more_attackers_than_tolerated_are_simulated_with_a_note():
    """Simulations may exceed the tolerated number on purpose."""
    (note,) = rules.check(cells(preset("open", "attack.kind=foe", "attack.nodes=4")))
    assert note == "attack: 4 of 16 nodes are bad, more than byzantine_fraction = 0.2 is meant to stand"
    assert rules.check(cells(preset("open", "attack.kind=foe", "attack.nodes=3"))) == []


def test_a_preset_in_a_grid_fills_unset_keys(tmp_path):
    """Each run keeps values of the file and --set: the preset gives six steps, the user 0.05."""
    file = tmp_path / "scenario.toml"
    file.write_text('[optimizer]\nlr = 0.05\n[sweep.grid]\npreset = ["custom", "vouched", "open"]\n"pace.rounds" = [3, 4]\n')
    _, found = sweep.read(file, ["simulate.nodes=9"])
    assert rules.check(found) == []
    kinds = [("custom", "pet"), ("vouched", "pet"), ("open", "gather")]
    assert [(c.scenario.preset, c.scenario.mix.kind, c.scenario.pace.rounds) for c in found] == [
        (*kind, rounds) for kind in kinds for rounds in (3, 4)
    ]
    assert {c.scenario.pace.local_steps for c in found} == {20, 6}
    assert {(c.scenario.simulate.nodes, c.scenario.optimizer.lr) for c in found} == {(9, 0.05)}
    assert not any(c.scenario.sweep.grid for c in found)


def test_config_show_prints_a_scenario_that_begins_with_a_preset(tmp_path, capsys):
    assert main(["config", "show", "scenario", "--preset", "open"]) == 0
    (tmp_path / "s.toml").write_text(capsys.readouterr().out)
    assert presets.load(Scenario, tmp_path / "s.toml") == preset("open")


def test_without_a_grid_there_is_one_run_without_labels():
    (cell,) = cells(scenario("simulate.seed=3"))
    assert cell.labels == {}
    assert cell.scenario == scenario("simulate.seed=3")


def test_a_grid_is_every_combination_and_seeds_change_fastest():
    found = cells(scenario(text='[sweep]\nseeds = [1, 2]\n[sweep.grid]\nmix.kind = ["pet", "dsgd"]\n"pace.rounds" = [5]\n'))
    assert [(c.labels["mix.kind"], c.labels["simulate.seed"]) for c in found] == [("pet", 1), ("pet", 2), ("dsgd", 1), ("dsgd", 2)]
    assert found[2].scenario.mix.kind == "dsgd"
    assert found[2].scenario.simulate.seed == 1
    assert {c.scenario.pace.rounds for c in found} == {5}
    assert not any(c.scenario.sweep.grid for c in found)


def test_coupled_keys_are_swept_together():
    """So each algorithm can be compared at its own rate."""
    text = '[sweep.grid]\n"mix.kind, optimizer.lr" = [["pet", 0.1], ["dsgd", 0.02]]\n'
    found = cells(scenario(text=text))
    assert [(c.scenario.mix.kind, c.scenario.optimizer.lr) for c in found] == [("pet", 0.1), ("dsgd", 0.02)]


def test_grid_values_of_every_type_keep_their_type():
    found = cells(scenario(text='[sweep.grid]\n"simulate.model" = [true, false]\n"task.model" = ["cnn"]\nmix.kappa = [0.25]\n'))
    assert [c.scenario.simulate.model for c in found] == [True, False]
    assert {c.scenario.task.params()["model"] for c in found} == {"cnn"}
    assert {c.scenario.mix.kappa for c in found} == {0.25}


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("mix.knd = [1]", r"sweep\.grid: mix\.knd: no such key; did you mean mix\.kind\?"),
        ("mix.kind = 3", r"sweep\.grid: mix\.kind: must be a list of values, got 3"),
        ("mix.kind = []", r"must be a list of values"),
        ('mix.kind = ["pett"]', r"mix\.kind: .*did you mean pet\?"),
        ('"mix.kind, optimizer.lr" = [["pet"]]', r"must be lists of 2 values, got \['pet'\]"),
        ("pace.rounds = [[1]]", r"pace\.rounds: must be text or a number, got \[1\]"),
        ("sweep.seeds = [1]", r"a sweep cannot change itself"),
        ("simulate.seed = [" + "1," * 20_000 + "]", r"must be at most 10000 runs, got 20000"),
    ],
)
def test_invalid_grids_are_refused(grid, message):
    with pytest.raises(ConfigError, match=message) as caught:
        cells(scenario(text=f"[sweep.grid]\n{grid}\n"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["simulate.nodes=1"], r"simulate\.nodes: must be a whole number >= 2 and <= 100000, got 1"),
        (["simulate.engine=real"], r"simulate\.engine: must be one of matrix, virtual"),
        (["faults.los=0.1"], r"faults\.los: no such key; did you mean faults\.loss\?"),
        (["faults.partitions=[[1, 2]]"], r"faults\.partitions: must be a list, each a list of a whole number"),
        (["faults.crash=-1"], r"faults\.crash: must be a number >= 0 and <= 1000000, got -1"),
        (["network.step_s=inf"], r"network\.step_s: must be a number > 0 and <= 1000000, got inf"),
    ],
)
def test_wrong_keys_and_values_are_one_line(assignments, message):
    with pytest.raises(ConfigError, match=message):
        scenario(*assignments)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["pace.rounds=0"], r"pace\.rounds: must be >= 1, got 0"),
        (["faults.loss=1"], r"faults\.loss: must be < 1"),
        (["faults.churn_from=5", "faults.churn_until=5"], r"faults\.churn_until: must be > faults\.churn_from = 5, got 5"),
        (["faults.partitions=[[5, 5, 0.5]]"], r"faults\.partitions: must be .* got \[5, 5, 0\.5\]"),
        (["faults.partitions=[[5, 9, 1.0]]"], r"a share > 0 and < 1"),
        (["overlay=base_k", "overlay.k=4", "simulate.nodes=4"], r"overlay\.k: must be < n = 4, got 4"),
        (["overlay=hypercube", "simulate.nodes=12"], r"overlay: "),
        (["overlay=hypercube", "faults.crash=0.1"], r"nodes come and go here"),
        (["mix=d2", "overlay=one_peer_exponential"], r"mix\.kind: d2 needs one symmetric mixing matrix that never changes"),
        (["mix=exact_diffusion", "overlay=ring", "faults.join=1"], r"but with faults nodes come and go"),
        (["mix=k_gt", "pace=clock"], r"mix\.kind: k_gt .*cannot run in clock pace"),
        (["simulate.engine=virtual", "simulate.nodes=65"], r"simulate\.nodes: must be <= 64 with engine = virtual, got 65"),
        (["simulate.engine=virtual", "simulate.model=false"], r"simulate\.model: whole nodes have one"),
        (["pace.overlap=true"], r"pace\.overlap: rows of an array .*engine=virtual"),
        (["pace.stop_after=3"], r"pace\.stop_after: rows of an array .*engine=virtual"),
        (["pace.overlap=true", "pace=clock"], r"pace\.overlap: has no effect in clock pace"),
        (["pace.overlap=true", "mix=gather", "overlay=pull"], r"pace\.overlap: gather .* leave it out"),
        (["pace.overlap=true", "mix=push_sum", "compress.select=full"], r"pace\.overlap: push_sum "),
        (["simulate.model=false", "pace=clock"], r"simulate\.model: false averages round by round"),
        (["task=text"], r"task\.path: text learns from files"),
        (("attack.kind=ali", "attack.nodes=1"), r"attack\.kind: 'ali' is unknown, choose one of alie, .*attack\.kind=alie`"),
        (("attack.kind=alie",), r"attack\.nodes: alie needs at least one node, got 0"),
        (("attack.nodes=15",), r"attack\.nodes: must leave two of simulate\.nodes = 16 honest, got 15; .*attack\.nodes=3`"),
        (("attack.rows=[16]",), r"attack\.rows: must name nodes below simulate\.nodes = 16, each once, got \[16\]"),
        (("attack.rows=[1, 1]",), r"each once, got \[1, 1\]"),
        (("attack.rows=[1]", "attack.nodes=1"), r"attack\.nodes must be 0, got 1"),
        (("attack.nodes=1", "attack.kind=tracker_neg"), r"lies about the tracker, which mix=pet does not exchange"),
        (("attack.nodes=1", "attack.kind=memory_reversed"), r"lies about optimiser state, which these nodes do not exchange"),
        (("attack.nodes=1", "attack.kind=drift_const"), r"attack\.kind: 'drift_const' is unknown"),
        (
            ("attack.nodes=1", "attack.kind=foe", "attack.params.epsilon=2.0", "simulate.engine=virtual"),
            r"attack\.params: whole nodes use an attack's default parameters",
        ),
        (("attack.nodes=1", "attack.kind=foe", "simulate.model=false"), r"without a model there is nothing to attack"),
        (("simulate.running_mean=true", "optimizer=adamw"), r"applies to sgd's momentum"),
        (("simulate.running_mean=true", "simulate.engine=virtual"), r"whole nodes begin with no momentum"),
        (("simulate.salt=a", "simulate.engine=virtual"), r"simulate\.salt: whole nodes order .* got 'a'; .*engine=matrix"),
        (["task=images", "task.path=/no/where"], r"task\.path: '/no/where' does not exist"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_bound_before_a_start(assignments, message):
    with pytest.raises(ConfigError, match=message) as caught:
        rules.check(cells(scenario(*assignments)))
    assert "\n" not in str(caught.value)


def test_the_failing_run_of_a_sweep_is_named():
    with pytest.raises(ConfigError, match=r"\(in the run with overlay\.k = 4\)"):
        rules.check(cells(scenario("simulate.nodes=4", "overlay=base_k", text="[sweep.grid]\noverlay.k = [1, 4]\n")))


def test_a_textbook_tracker_with_local_steps_is_warned_of():
    """On digits, 4 nodes and 40 rounds of 20 steps, it ends at .67 where k_gt and dsgd reach .95; with one step per round it is as good."""
    said = rules.check(cells(scenario("mix=gradient_tracking", "overlay=base_k")))
    assert [line for line in said if line.startswith("pace.local_steps: gradient_tracking") and "arXiv:1607.03218" in line]
    for fine in (("mix=gradient_tracking", "pace.local_steps=1"), ("mix=k_gt",)):
        assert not [line for line in rules.check(cells(scenario(*fine, "overlay=base_k"))) if "local_steps" in line]


def test_a_warning_is_given_once_for_all_runs():
    text = "[sweep]\nseeds = [1, 2, 3]\n"
    assert len(rules.check(cells(scenario("mix.clip_norm=0", text=text)))) == 1


def test_a_crash_is_detected_after_a_probe_its_timeout_and_a_refutation():
    """With the defaults: 1.58 + 0.5 + 2 s."""
    assert rules.detection_s(Scenario()) == pytest.approx(4.08, abs=0.01)


def test_the_command_line_part_imports_no_torch():
    """Typos, also in names of attacks, must be refused quickly, and memory is left to worker processes."""
    code = (
        "import sys; from starling.node.simulate import schema, sweep, rules, results, worker, executors, runs, api, plot; "
        "import starling.node.cli.research.simulate; from starling.node.config import toml; "
        "rules.check(sweep.cells(toml.apply_set(schema.Scenario(), ('attack.nodes=1', 'attack.kind=foe')))); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_kappa_that_is_too_large_for_so_many_nodes_is_warned_of():
    (note,) = rules.check(cells(scenario("mix.kappa=0.25", "simulate.nodes=16")))
    assert note.startswith("mix.kappa: 0.25 is not below 0.25, from where on flows of 16 nodes may grow without end")
    assert note.endswith("try `--set mix.kappa=0.23`")
    assert rules.check(cells(scenario("mix.kappa=0.23", "simulate.nodes=16"))) == []
    assert rules.check(cells(scenario("mix.kappa=0.25", "simulate.nodes=8"))) == []
    assert rules.check(cells(scenario("mix=dsgd", "simulate.nodes=16"))) == []


@pytest.mark.parametrize("given", ["kappa=0.25", "flow_limit=5.0", "leak=0.1", "settled_edges=2", "flows=bfloat16"])
def test_keys_of_flows_are_refused_where_memories_are_averaged(given):
    key = given.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^mix\.{key}: applies to flows, which optimizer=adamw does not use .*leave it out"):
        rules.check(cells(scenario(f"mix.{given}", "optimizer=adamw")))
    assert rules.check(cells(scenario("optimizer=adamw", "simulate.nodes=16"))) == []
