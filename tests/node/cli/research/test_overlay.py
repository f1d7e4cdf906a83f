"""`starling overlay`: its measurements and drawings, the exact JSON of a comparison, and one line for what cannot be computed."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from starling.gossip.overlay import measure
from starling.gossip.overlay.base_k import BaseK
from starling.node.cli.main import main
from starling.node.cli.research import drawing
from starling.robust.sampling import overflow
from tests.harness.cli_doubles import refused

ROOT = Path(__file__).parents[4]


def said(capsys, *arguments):
    assert main(["overlay", *arguments]) == 0
    return capsys.readouterr().out


def test_a_comparison_has_errors_and_messages_of_every_round(capsys):
    """The shape that plots and other programs read: three lists of equal length for each kind."""
    out = json.loads(said(capsys, "compare", "-n", "33", "--kinds", "ring,one_peer_exponential,base_k", "--rounds", "20", "--json"))
    assert list(out) == ["version", "n", "kinds"]
    assert out["n"] == 33
    assert list(out["kinds"]) == ["ring", "one_peer_exponential", "base_k"]
    for row in out["kinds"].values():
        assert list(row) == ["rounds", "consensus_error", "messages_per_node"]
        assert row["rounds"] == list(range(21))
        assert len(row["consensus_error"]) == len(row["messages_per_node"]) == 21
        assert row["consensus_error"][0] == 1.0
        assert row["messages_per_node"][0] == 0
    assert out["kinds"]["base_k"]["consensus_error"][11] < 1e-25 < out["kinds"]["base_k"]["consensus_error"][10]
    assert out["kinds"]["one_peer_exponential"]["messages_per_node"][-1] == pytest.approx(20)
    assert out["kinds"]["ring"]["messages_per_node"][-1] == pytest.approx(40)


def test_a_comparison_is_the_same_for_the_same_seed_and_starts_all_kinds_from_the_same_numbers(capsys):
    options = ("compare", "-n", "8", "--kinds", "base_k,hypercube,random_matching", "--rounds", "6", "--json")
    first = said(capsys, *options, "--seed", "4")
    assert said(capsys, *options, "--seed", "4") == first
    assert said(capsys, *options, "--seed", "5") != first
    kinds = json.loads(first)["kinds"]
    walk = measure.walk(BaseK(1), measure.start(4, 8), 6)
    assert kinds["base_k"]["consensus_error"] == walk.consensus_error.tolist()


def test_a_comparison_for_people_says_when_the_average_is_reached_and_draws_the_curves(capsys):
    out = said(capsys, "compare", "-n", "33", "--kinds", "ring, base_k", "--k", "2")
    (ring,) = (line for line in out.splitlines() if line.startswith("a  ring"))
    (base,) = (line for line in out.splitlines() if line.startswith("b  base_k"))
    assert ring.split()[-2:] == ["–", "–"]
    assert base.split()[-2] == "6"
    assert "consensus error by round" in out


def test_show_measures_and_draws(capsys):
    out = said(capsys, "show", "base_k", "-n", "33", "--k", "2")
    assert "base_k, 33 members" in out
    assert "period 6 rounds" in " ".join(out.split())
    assert "begun in round 0; begun elsewhere up to 0.8 of a disagreement is left" in out
    assert "1 (0.333), 2 (0.333)" in out
    assert any("⠀" < character <= "⣿" for character in out)


def test_show_as_json_has_the_same_facts(capsys):
    out = json.loads(said(capsys, "show", "one_peer_exponential", "-n", "16", "--round", "2", "--json"))
    assert out["symmetric"] is False
    assert out["period"] == out["finite_time_rounds"] == 4
    assert out["left_out_of_phase"] < 1e-12
    assert out["degree"] == {"largest": 1, "mean": 1.0}
    assert out["degree_of_all_rounds"] == {"largest": 4, "mean": 4.0}
    assert out["messages_per_node_and_round"] == 1.0
    assert out["spectral_gap"] == 1.0
    assert sorted(out["edges"]) == [[i, (i + 4) % 16, 0.5] for i in range(16)]


def test_show_takes_the_parameters_of_a_kind(capsys):
    out = json.loads(said(capsys, "show", "ring", "-n", "8", "--json", "--set", "average_every=5"))
    assert out["parameters"] == {"average_every": 5}
    assert out["finite_time_rounds"] == 5 + 3 - 1
    lazy = json.loads(said(capsys, "show", "complete", "-n", "8", "--json", "--set", "weights=lazy"))
    assert lazy["spectral_gap"] == pytest.approx(0.5)
    assert lazy["finite_time_rounds"] is None
    both = json.loads(said(capsys, "show", "ring", "-n", "8", "--json", "--set", "average_every=5", "--set", "overlap=true"))
    assert both["finite_time_rounds"] == 5


def test_show_gives_expected_figures_of_an_overlay_redrawn_each_round(capsys):
    out = said(capsys, "show", "random_matching", "-n", "16")
    assert "none, every round is drawn anew" in out
    (line,) = (line for line in out.splitlines() if line.startswith("expected"))
    assert float(line.split()[1]) == pytest.approx(0.53, abs=0.08)


def test_show_gives_the_two_time_constants_of_a2cid2(capsys):
    """For a ring: 1/λ_2 of its Laplacian, and half the resistance between two neighbors; each pair meets 2/3 times a round."""
    out = json.loads(said(capsys, "show", "ring", "-n", "16", "--json"))
    slowest = 2 / 3 * (2 - 2 * math.cos(2 * math.pi / 16))
    assert out["chi_rounds"] == pytest.approx([1 / slowest, 0.5 * 3 / 2 * 15 / 16])
    assert "mix.chi1 and mix.chi2" in said(capsys, "show", "ring", "-n", "16")
    alone = said(capsys, "show", "alone", "-n", "4")
    assert "spectral gap 0 finite time –" in " ".join(alone.split())
    assert "χ1" not in alone


def test_a_large_swarm_is_measured_by_its_rows_and_not_drawn(capsys):
    out = said(capsys, "show", "one_peer_exponential", "-n", "1000")
    assert "no drawing: 1000 members do not fit, the most is 64" in out
    assert "– (measured up to 512 members)" in out
    assert "degree 1 in round 0, 10 over its period" in " ".join(out.split())


@pytest.mark.slow
def test_show_plots_into_a_file(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    said(capsys, "show", "torus", "-n", "12", "--png", str(tmp_path / "torus.png"))
    assert (tmp_path / "torus.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_that_exists_is_not_replaced(capsys, tmp_path):
    plot = tmp_path / "ring.png"
    plot.write_text("of yesterday")
    refused(capsys, ["overlay", "show", "ring", "-n", "5", "--png", plot], "--png", "exists", "`--force`")
    assert plot.read_text() == "of yesterday"


def test_without_matplotlib_one_line_says_how_to_get_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["overlay", "show", "ring", "-n", "5", "--png", str(tmp_path / "ring.png")]) == 2
    err = capsys.readouterr().err
    assert err == "starling: plots need matplotlib; `pip install 'starling-swarm[plot]'` brings it\n"


WRONG = [
    (["show", "mobius"], ["'mobius'", "choose one of alone, base_k"]),
    (["show", "base_k", "-n", "4", "--k", "4"], ["overlay.k", "must be < n = 4, got 4"]),
    (["show", "hyper_hypercube", "-n", "10", "--k", "2"], ["at most k + 1 = 3, got 10"]),
    (["show", "complete", "-n", "9000"], ["complete has some 80,991,000 edges", "`-n 2250`"]),
    (["show", "ring", "-n", "1"], ["-n", "2<=x<=10000", "`starling overlay show --help`"]),
    (["show", "ring", "--set", "colour=red"], ["overlay.colour: no such key", "average_every"]),
    (["show", "ring", "--set", "average_every=often"], ["overlay.average_every: must be a whole number >= 0", "'often'"]),
    (["show", "ring", "--set", "overlap=perhaps"], ["overlay.overlap: must be true or false", "'perhaps'"]),
    (["show", "ring", "--set", "eta=0.5"], ["overlay.eta: ring has no such key"]),
    (["show", "ring", "-n", "5", "--png", "no/such/folder/ring.png"], ["no/such/folder/ring.png", "cannot be written"]),
    (["show", "ring", "-n", "5", "--png", "ring.sketch"], ["ring.sketch", "cannot be written", "`plot.png`"]),
    (["show", "ring", "-n", "5", "--png", "."], ["--png: . exists"]),
    (["compare", "-n", "12", "--kinds", "ring,hypercube"], ["power of two of members, got 12: the next one is 16"]),
    (["compare", "--kinds", "ring,mobius"], ["'mobius' is unknown"]),
    (["compare", "--kinds", " , "], ["--kinds", "must name at least one", "`--kinds ring,one_peer_exponential,base_k`"]),
    (["compare"], ["--kinds", "`starling overlay compare --help`"]),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
def test_wrong_input_is_one_line_that_names_it(arguments, words, capsys, tmp_path, monkeypatch):
    if "--png" in arguments:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    refused(capsys, ["overlay", *arguments], *words)


@pytest.mark.slow
@pytest.mark.real
def test_overlays_need_no_torch():
    program = (
        "import sys; from starling.node.cli.main import main; "
        "main(['overlay', 'show', 'ring', '-n', '5', '--json']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("n", [1, 2, 5, 33, 64])
def test_a_drawing_fits_a_terminal_and_names_ranks_around_the_circle(n):
    """Rank 0 on top; 80 columns, of which a few are left for a border."""
    lines = drawing.chords(n, [(i, (i + 1) % n) for i in range(n)]).splitlines()
    assert len(lines) <= drawing.LINES
    assert max(map(len, lines)) <= drawing.COLUMNS
    assert "0" in lines[0].split()
    named = {word for line in lines for word in "".join(c if c.isdigit() else " " for c in line).split()}
    assert named == {str(rank) for rank in range(0, n, 2 if n > 40 else 1)}


def test_an_edge_is_drawn_where_its_ranks_are():
    """Of four ranks 1 sits on the right and 3 on the left: a line across the middle, and nothing above or below."""
    lines = drawing.chords(4, [(1, 3)]).splitlines()
    drawn = [number for number, line in enumerate(lines) if any("⠀" < c <= "⣿" for c in line)]
    assert len(drawn) == 1
    (right,) = (number for number, line in enumerate(lines) if line.rstrip().endswith(" 1"))
    assert drawn == [right]
    assert drawing.chords(4, [(3, 1)]) == "\n".join(lines)


def test_curves_fall_by_decades_with_a_letter_each():
    picture = drawing.curves({"slow": [1.0] * 31, "fast": [10.0**-t for t in range(31)], "gone": [0.0] * 31}, 1e-15)
    lines = picture.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].endswith("│bb" + "a" * 70)
    assert lines[15].endswith("c" * 72)
    assert [line.strip().split(" ")[0] for line in (lines[0], lines[5], lines[15])] == ["1", "1e-05", "1e-15"]
    assert lines[-1].split() == ["0", "30"]


def test_sampling_counts_the_byzantine_peers_met(capsys):
    """The numbers of `starling.robust.sampling`, as JSON and for people."""
    out = json.loads(said(capsys, "sampling", "-n", "64", "--bad", "13", "--json"))
    assert out["more_than_b"] == [overflow(64, 13, 6, b) for b in range(6)]
    assert (out["most"], out["never_half"]) == (6, 27)
    shown = said(capsys, "sampling", "-n", "64", "--bad", "13")
    for words in ("6 of 63 others sampled, 13 of 64 members Byzantine", "9.64 %", "at worst 6 of 6 in 1000 rounds", "sample 27"):
        assert words in shown
    assert "– (counted up to 40% Byzantine members)" in said(capsys, "sampling", "-n", "9", "--bad", "6", "--k", "3")


@pytest.mark.parametrize(("option", "value"), [("--bad", "16"), ("--k", "16")])
def test_sample_sizes_above_the_number_of_members_are_refused(capsys, option, value):
    refused(capsys, ["overlay", "sampling", "-n", 16, "--bad", 3, option, value], f"{option}: must be < n = 16, got 16; try")
