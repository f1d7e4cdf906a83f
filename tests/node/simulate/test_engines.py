"""Whole runs: both engines follow one trajectory, faults have their documented effect, and a seed gives one outcome."""

import json
import math
from pathlib import Path

import pytest

from starling.gossip.errors import ConfigError
from starling.gossip.mix.flows import chosen_kappa
from starling.node.config import toml
from starling.node.simulate import results, rules
from starling.node.simulate.engines import check, simulate
from starling.node.simulate.measure import consensus_distance
from starling.node.simulate.schema import Scenario
from starling.node.simulate.sweep import cells
from tests.harness.texts import words

EXAMPLES = Path(__file__).parents[3] / "examples"
EXACT = ("compress.select=full", "compress.request=identity", "compress.response=identity")
BOWLS = ("task=quadratic", "task.dim=8", "task.dtype=float64", "optimizer.lr=0.1", "optimizer.momentum=0", "mix.clip_norm=0", *EXACT)
SAC = ("mix=gather", "robust.rule=sac", "overlay=hypercube", "compress.select=full")
SPARSE = ("mix=sparse_outer", "mix.decay=0.5", "overlay=complete", "compress.select=chunk_top_k", "compress.response=spread2")
SEEDS = ("mix=seeds", "overlay=complete", "optimizer.momentum=0", "compress.select=full", "compress.response=int8_nearest")
COCKTAIL = ("compress.select=cocktail", "compress.ratio=0.02", "compress.response=int4", "mix.feedback=ef21")
CONTROLLED = ("mix.feedback=ef21", "mix.control_variate=true", "simulate.nodes=5")
pytestmark = pytest.mark.slow
FIGURES = ("loss", "mean_model", "mean", "min", "max", "consensus_distance")


def scenario(*assignments, base=None):
    loaded = toml.apply_set(base or Scenario(), assignments)
    rules.check(cells(loaded))
    check(loaded)
    return loaded


def run(*assignments, base=None):
    return simulate(scenario(*assignments, base=base), lambda _round, _line: None)


def figures(outcome):
    return [[getattr(row, name) for name in FIGURES] for row in outcome.rows]


SHORT = ("simulate.nodes=4", "simulate.seed=3", "pace.rounds=6", "pace.local_steps=3", "pace.evaluate_every=2")


@pytest.mark.parametrize(
    ("settings_of", "digits"),
    [
        ((*EXACT, "partition=by_label", "task.hidden=16"), 5),
        ((*EXACT, "task.hidden=16", "mix.typical_samples=350"), 5),
        ((*EXACT, "task.hidden=16", "mix.typical_samples=350", "optimizer=adamw", "mix=dsgd"), 5),
        # Muon orthogonalises in bfloat16.
        ((*EXACT, "partition=by_label", "task.hidden=16", "optimizer=muon", "mix=dsgd"), 4),
        # m is rounded to nearest; v randomly, and with another seed per edge on whole nodes.
        ((*EXACT, "partition=by_label", "task.hidden=16", "mix=moments", "optimizer=sgd"), 5),
        ((*EXACT, "task.hidden=16", 'mix.personal=["2.*"]'), 5),
        ((*EXACT, "task.hidden=16", 'mix.personal=["2.*"]', "mix.own=0.3", "mix=dsgd", "overlay=random_matching"), 5),
        ((*EXACT, "task.hidden=16", "mix=dsgd", 'mix.turns=["2.*", "0.*"]', "overlay=random_matching"), 5),
        ((*BOWLS, "task.noise=0.1"), 9),
        ((*BOWLS, "simulate.nodes=12"), 9),
        ((*EXACT, "task.hidden=16", "optimizer.sam=0.1"), 5),
        ((*EXACT, "task.hidden=16", "pace.gossips=3", "overlay=random_matching"), 5),
        ((*BOWLS, "optimizer.gradient=optimistic"), 9),
        ((*BOWLS, "optimizer.gradient=extragradient"), 9),
        ((*BOWLS, "mix.kappa=0.45", "optimizer.lr=0.3"), 9),
        ((*BOWLS, "mix=gradient_tracking", "overlay=one_peer_exponential", "simulate.nodes=5"), 9),
        ((*BOWLS, "mix=quasi_global", "overlay=base_k", "optimizer.schedule=linear"), 9),
        ((*BOWLS, "mix=d2", "overlay=ring", "overlay.weights=lazy"), 9),
        ((*BOWLS, "mix=push_sum", "overlay=one_peer_exponential"), 9),
        ((*BOWLS, "mix=psgd", "overlay=complete", "compress.select=top_k", "compress.ratio=0.25", *CONTROLLED), 9),
        ((*EXACT, "mix=psgd", "overlay=complete", "task.hidden=16", *COCKTAIL), 5),
        ((*BOWLS, "mix=outer", "overlay=alone", "overlay.average_every=1"), 9),
        ((*BOWLS, "mix=outer", "overlay=alone", "overlay.average_every=1", "mix.plain_averages=1"), 9),
        ((*EXACT, "compress.select=layered", "compress.ratio=0.05", "task.hidden=16"), 5),
        ((*EXACT, "mix=gather", "overlay=complete", "robust.f=1", "simulate.nodes=5", "task.hidden=16"), 5),
        ((*SAC, "compress.response=int8", "task.hidden=16"), 5),
        ((*SPARSE, "compress.ratio=0.05", "task.hidden=16"), 5),
        ((*SEEDS, "task.hidden=4", "optimizer.lr=0.003"), 5),
    ],
    ids=[
        *words(
            "digits weights weighed_updates muon moments_of_sgd heads_at_home own_shares blocks_in_turns pet pet_of_twelve",
            "sharpness_aware several_exchanges optimistic extragradient pet_at_a_high_rate tracking quasi_global d2 push_sum",
            "control_variates drawn_for_all outer plain_averages layered gather sac sparse_outer seeds",
        )
    ],
)
def test_both_engines_follow_one_trajectory(settings_of, digits):
    """Results from thousands of simulated nodes hold for real ones; float32 sums differ in the last bits."""
    vectorised = run(*SHORT, *settings_of)
    whole = run(*SHORT, *settings_of, "simulate.engine=virtual")
    assert len(vectorised.rows) == 4
    assert [row.round for row in vectorised.rows] == [row.round for row in whole.rows]
    for one, other in zip(figures(vectorised), figures(whole), strict=True):
        assert one == pytest.approx(other, rel=10.0**-digits, abs=1e-12)
    assert len({tuple(row) for row in figures(vectorised)}) == 4  # they do move


def test_a_run_of_slots_ends_where_the_last_slot_of_a_node_is_not_the_swarm_s():
    """With slots of a tenth of a second some nodes end one slot early; the run waited for them until it failed."""
    clock = ("pace.kind=clock", "pace.slot_s=0.1", "pace.rounds=6", "pace.evaluate_every=6", "simulate.nodes=4", "partition.kind=iid")
    outcome = run("simulate.engine=virtual", "preset=custom", "partition.shards=8", "task.hidden=1", "task.batch_size=1", *clock)
    assert [row.round for row in outcome.rows] == [0, 6]
    assert outcome.counts["committed"] > 0


@pytest.mark.parametrize("engine", ["matrix", "virtual"])
def test_both_engines_choose_kappa_by_the_number_of_members(engine, monkeypatch):
    counted = set()

    def chosen(members=1):
        counted.add(members)
        return chosen_kappa(members)

    monkeypatch.setattr("starling.gossip.mix.flows.chosen_kappa", chosen)
    run(*BOWLS, *SHORT, "simulate.nodes=16", f"simulate.engine={engine}")
    assert counted - {1} == {16}, "a responder bounds gains by those among fewer"


@pytest.mark.parametrize("select", ["full", "mask"])
def test_pet_finds_the_common_optimum_with_several_exchanges_per_phase(select):
    """Its gain assumes one exchange after some steps; here three follow one another."""
    outcome = run(
        *BOWLS,
        "overlay=random_matching",
        "simulate.nodes=8",
        f"compress.select={select}",
        "pace.local_steps=4",
        "pace.gossips=3",
        "pace.rounds=360",
        "pace.evaluate_every=120",
    )
    assert outcome.rows[-1].mean < 1e-5 * outcome.rows[0].mean


@pytest.mark.parametrize("overlay", ["ring", pytest.param("base_k", marks=pytest.mark.acceptance)])
@pytest.mark.parametrize("link", [("network.latency_s=0.1",), ("network.bytes_per_s=2e4",)], ids=["latency", "rate"])
def test_without_faults_no_exchange_of_whole_nodes_misses_its_deadline(overlay, link):
    """Gossip-PGA on slow links: on a virtual network all answers take equally long, and an adaptive deadline once left no time for a
    neighbor that itself waits for another: of 124 exchanges on the ring 92 were committed.
    """
    settings_of = (
        *EXACT,
        *link,
        "simulate.nodes=8",
        "mix=dsgd",
        f"overlay={overlay}",
        "pace.evaluate_every=20",
        "overlay.average_every=4",
        "pace.local_steps=2",
        "pace.rounds=20",
        "task.hidden=16",
        "partition=by_label",
    )
    matrix, virtual = (run(*settings_of, f"simulate.engine={name}") for name in ("matrix", "virtual"))
    assert {key for key, count in virtual.counts.items() if count} == {"committed"}
    assert virtual.counts["committed"] == matrix.counts["committed"]
    for one, other in zip(figures(matrix), figures(virtual), strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_with_a_fault_deadlines_are_learned():
    """A straggler is not waited for, so some exchanges with it miss their deadline."""
    settings_of = ("simulate.engine=virtual", "simulate.nodes=4", "mix=dsgd", "overlay=ring", "pace.local_steps=2", "pace.rounds=30")
    slow = ("faults.straggler_share=0.25", "faults.straggler_factor=500", "task.hidden=16", "pace.max_wait_s=2")
    assert run(*settings_of, *slow).counts["timeout"] > 0


@pytest.mark.acceptance
def test_random_subspaces_cost_and_learn_alike_on_both_engines():
    """The seeds differ, since a node's seed is unknown before it draws it. Whole nodes count frame overhead too."""
    settings_of = ("simulate.nodes=4", "pace.rounds=20", "task.hidden=16", "compress.select=low_rank")
    vectorised, whole = (run(*settings_of, f"simulate.engine={name}").rows[-1] for name in ("matrix", "virtual"))
    frames = (whole.bytes_per_node - vectorised.bytes_per_node) / whole.exchanges_per_node
    assert 0 < frames < 256
    assert vectorised.mean == pytest.approx(whole.mean, abs=0.1)
    assert min(vectorised.mean, whole.mean) > 0.6  # it is .1 at the start


@pytest.mark.parametrize("engine", ["matrix", "virtual"])
def test_a_scenario_replays_to_the_last_digit_with_all_its_faults(engine):
    """Losses, deadlines and churn follow from the seed; only elapsed real time differs."""
    faults = ("faults.loss=0.3", "faults.crash=0.2", "faults.join=0.2", "faults.leave=0.1", "faults.partitions=[[2, 4, 0.5]]")
    settings_of = (*SHORT, *BOWLS, *faults, "pace.max_wait_s=1", f"simulate.engine={engine}", "simulate.nodes=5")
    documents = []
    for seed in (3, 3, 4):
        found = results.Finished(labels={}, outcome=run(*settings_of, f"simulate.seed={seed}"))
        document = json.loads(results.to_json({}, [found], 1))
        assert document["runs"][0].pop("wall")["seconds"] > 0.0
        documents.append(document)
    assert documents[0] == documents[1]
    assert documents[0]["runs"][0]["rows"] != documents[2]["runs"][0]["rows"]
    assert documents[0]["runs"][0]["counts"]["crashed"] + documents[2]["runs"][0]["counts"]["crashed"] > 0


TEN = (*BOWLS, "simulate.nodes=10", "pace.rounds=40", "pace.local_steps=2", "pace.evaluate_every=40")


def test_without_faults_every_scheduled_exchange_completes():
    counts = run(*TEN).counts
    assert counts["meetings"] == counts["committed"] > 0
    assert sum(counts.values()) == 2 * counts["committed"]


def test_with_one_salt_other_settings_have_the_same_partners():
    """The scenario's name is part of the manifest, hence of the swarm id, and changes nothing else."""

    def rows(*given):
        return run(*BOWLS, "simulate.nodes=8", "pace.rounds=6", "pace.evaluate_every=1", *given).rows

    assert rows("name=one") != rows("name=other")
    salted = rows("name=one", "simulate.salt=a")
    assert salted == rows("name=other", "simulate.salt=a")
    assert salted != rows("name=one", "simulate.salt=b")


def test_messages_are_lost_at_the_configured_rate():
    """With one try, a request and a response both arrive with probability .7² = .49."""
    counts = run(*TEN, "faults.loss=0.3", "faults.tries=1", "pace.rounds=100", "pace.max_wait_s=0.3").counts
    assert counts["lost"] / (counts["lost"] + counts["committed"]) == pytest.approx(0.51, abs=0.06)
    assert counts["unproven"] / counts["committed"] == pytest.approx(0.3, abs=0.06)
    again = run(*TEN, "faults.loss=0.3").counts
    assert again["lost"] < 0.06 * again["committed"]  # six tries


def test_nothing_passes_a_partition_while_it_lasts():
    assert run(*TEN, "faults.partitions=[[100, 200, 0.5]]").counts["cut"] == 0
    counts = run(*TEN, "faults.partitions=[[0, 40, 0.5]]").counts
    assert counts["cut"] > 40
    assert counts["cut"] + counts["committed"] + counts["late"] == counts["meetings"]


def test_stragglers_miss_deadlines_and_cost_time():
    quick, slow = (run(*TEN), run(*TEN, "faults.straggler_share=0.3", "faults.straggler_factor=20", "pace.max_wait_s=0.3"))
    assert slow.rows[-1].seconds > 1.5 * quick.rows[-1].seconds
    assert slow.counts["late"] > 0


def test_nodes_join_and_leave_and_each_joiner_has_its_own_problem():
    """The error is measured from the optimum of live nodes, which corrections for departed nodes would miss."""
    outcome = run(
        *TEN,
        "faults.crash=0.5",
        "faults.join=1",
        "faults.leave=0.2",
        "faults.churn_from=5",
        "faults.churn_until=25",
        "pace.rounds=300",
        "membership.suspicion_s=1",
        "pace.ramp_rounds=0",
        "optimizer.schedule=constant",
    )
    counts = outcome.counts
    assert counts["joined"] == 20
    assert counts["crashed"] > 3
    assert counts["left"] > 0
    assert counts["dead"] > 0  # exchanges with dead nodes fail until these are declared dead
    assert outcome.rows[-1].alive == 10 + 20 - counts["crashed"] - counts["left"]
    assert outcome.rows[-1].mean < 1e-6


def test_bytes_take_time_on_slow_links():
    """A request and a response of 8 float64 and their frames at 1 kB a second."""
    eight = (*TEN, "simulate.nodes=8")  # every node exchanges in every round
    fast, slow = run(*eight), run(*eight, "network.bytes_per_s=1000")
    assert slow.rows[-1].bytes_per_node == fast.rows[-1].bytes_per_node
    assert slow.rows[-1].seconds - fast.rows[-1].seconds == pytest.approx(40 * 0.256, rel=0.2)
    spread = run(*eight, "network.bytes_per_s=1000", "network.spread=1.0", "pace.max_wait_s=60")
    assert spread.rows[-1].seconds > 1.2 * slow.rows[-1].seconds
    uneven = run(*eight, "network.rates=[1e6, 500]", "pace.max_wait_s=60")
    assert uneven.rows[-1].seconds > 1.2 * slow.rows[-1].seconds


def test_clock_pace_does_not_wait():
    """Slots pass at fixed times, with slow nodes too; and corrections still lead to the common optimum."""
    outcome = run(
        *TEN,
        "pace=clock",
        "pace.slot_s=0.05",
        "pace.rounds=120",
        "faults.straggler_share=0.2",
        "faults.loss=0.3",
        "faults.tries=1",
        "optimizer.schedule=constant",
    )
    assert outcome.rows[-1].seconds == pytest.approx(120 * 0.05)
    assert outcome.rows[-1].mean < 1e-3
    assert outcome.counts["late"] == 0


def test_rows_begin_before_the_first_round_and_end_after_the_last():
    outcome = run(*TEN, "pace.rounds=7", "pace.evaluate_every=3")
    assert [row.round for row in outcome.rows] == [0, 3, 6, 7]
    first = outcome.rows[0]
    assert (first.seconds, first.bytes_per_node, first.exchanges_per_node) == (0.0, 0.0, 0.0)
    assert first.mean == pytest.approx(1.0)
    assert first.consensus_distance == 0.0


def test_the_target_is_reached_when_the_mean_first_reaches_it():
    rows = run(*TEN, "pace.evaluate_every=1").rows
    target = (rows[9].mean + rows[10].mean) / 2.0
    at = run(*TEN, "pace.evaluate_every=1", f"simulate.target={target!r}").target
    assert at.round == 10
    assert at.seconds == rows[10].seconds
    assert run(*TEN, "simulate.target=1e-300").target is None


def test_divergence_is_a_result_and_does_not_end_a_sweep():
    """A sweep over rates must show where they become too high."""
    outcome = run(*TEN, "optimizer.lr=1e6", "mix=dsgd", "pace.rounds=120")
    assert outcome.diverged is not None
    assert outcome.rows[0].mean == pytest.approx(1.0)
    assert all(math.isfinite(figure) for row in figures(outcome) for figure in row)


def test_evaluated_nodes_are_all_or_evenly_spread():
    few = ("simulate.nodes=6", "pace.rounds=2", "pace.local_steps=1", "task.hidden=8", "partition=by_label")
    everyone, some = run(*few, "simulate.sample=0").rows[-1], run(*few, "simulate.sample=2").rows[-1]
    assert everyone.mean_model == some.mean_model
    assert everyone.min <= some.min <= some.max <= everyone.max


def test_without_a_model_one_number_per_node_is_averaged():
    outcome = run("simulate.model=false", "simulate.nodes=500", "pace.rounds=40", "pace.evaluate_every=20")
    assert outcome.parameters == 1
    assert outcome.metric == "consensus_error"
    assert [row.mean for row in outcome.rows] == pytest.approx([1.0, 0.0, 0.0], abs=1e-2)
    assert outcome.rows[-1].mean < outcome.rows[1].mean
    assert outcome.rows[-1].loss is None


def test_missing_data_give_one_line():
    with pytest.raises(ConfigError, match=r"partition\.shards: must be task\.nodes = 3, got 4"):
        run("simulate.nodes=4", "task=diagonal", "task.nodes=3")
    with pytest.raises(ConfigError, match=r"task\.kind: 'digit' is unknown"):
        run("task=digit")
    with pytest.raises(ConfigError, match=r"compress\.select: 'made_up' is unknown"):
        run("compress.select=made_up")


def example(name, *assignments):
    planned = cells(scenario(*assignments, base=toml.load(EXAMPLES / name, Scenario)))
    return [simulate(cell.scenario, lambda _round, _line: None) for cell in planned]


def test_the_example_of_digits_shows_the_effect_of_a_correction():
    pet, dsgd = example("simulate-digits.toml", "pace.rounds=10", "sweep.seeds=[0]", "simulate.sample=4", "pace.local_steps=10")
    assert pet.rows[-1].loss < dsgd.rows[-1].loss - 0.03  # after ten rounds accuracies are those of guessing


def test_the_example_of_a_thousand_nodes_converges():
    (outcome,) = example("simulate-thousand.toml", "pace.rounds=12", "task.dim=320", "simulate.threads=1")
    assert outcome.rows[-1].alive == 1000
    assert outcome.rows[-1].mean < 0.7


@pytest.mark.acceptance  # the documented command runs the example with every test run
def test_the_example_of_churn_separates_the_algorithms():
    """A textbook tracker keeps the share of dead nodes, plain averaging keeps the differences; flows are deleted with the dead node."""
    rounds = ("pace.rounds=170", "faults.churn_from=10", "faults.churn_until=50", "faults.crash=0.15", "faults.join=0.15")
    compared = 'sweep.grid={"mix.kind"=["pet", "gradient_tracking"]}'
    pet, tracking = example(
        "simulate-churn.toml", *rounds, compared, "membership.suspicion_s=1", "membership.probe_s=0.2", "pace.evaluate_every=170"
    )
    assert pet.rows[-1].mean < 1e-4
    assert tracking.rows[-1].mean > 1e-3


@pytest.mark.acceptance
def test_the_example_of_members_averages_on_every_overlay():
    for outcome in example("simulate-members.toml", "pace.rounds=20", "simulate.nodes=1000", "faults.crash=0.5"):
        assert outcome.rows[-1].mean < 1e-2


@pytest.mark.parametrize("engine", ["matrix", pytest.param("virtual", marks=pytest.mark.acceptance)])
@pytest.mark.parametrize(
    ("settings_of", "falls_to"),
    [
        (
            words(
                "mix=psgd mix.feedback=demo overlay=complete compress.select=dct_top_k compress.chunk=8 compress.ratio=0.25",
                "optimizer.schedule=linear",
            ),
            0.2,
        ),
        (("mix=choco", "mix.gamma=0.5", "overlay=ring", "compress.response=sign_x3"), 0.2),
        (("mix=pet", "overlay=ring", "compress.response=int2_nearest_x2"), 0.2),
        (("mix=psgd", "overlay=complete", "compress.select=top_k", "compress.ratio=0.25", "compress.response=int4_x2"), 0.2),
    ],
    ids=["demo", "sign_x3", "int2_nearest_x2", "int4_x2"],
)
def test_a_small_swarm_trains_with_each_feedback_by_name(settings_of, falls_to, engine):
    """Decoupled momentum and multi-step compression are catalogue entries, on whole nodes and in the matrix."""
    outcome = run(
        f"simulate.engine={engine}",
        "simulate.nodes=4",
        "pace.rounds=40",
        "pace.local_steps=2",
        "pace.evaluate_every=20",
        *BOWLS,
        *settings_of,
    )
    assert outcome.rows[-1].mean < falls_to * outcome.rows[0].mean


@pytest.mark.parametrize("engine", ["matrix", "virtual"])
def test_models_are_available_at_every_evaluation(engine):
    """The models of the nodes that the row covers."""
    chosen, seen = scenario(*SHORT, f"simulate.engine={engine}", "task.hidden=8"), {}
    outcome = simulate(chosen, lambda _round, _line: None, lambda number, x: seen.update({number: x.clone()}))
    assert list(seen) == [0, 2, 4, 6]
    assert all(len(x) == 4 for x in seen.values())
    assert [consensus_distance(x) for x in seen.values()] == pytest.approx([row.consensus_distance for row in outcome.rows])
