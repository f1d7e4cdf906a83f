"""`starling bench`: its output, its refusals, and that its figures measure what their names say."""

import contextlib
import importlib.util
import math
import signal
import subprocess
import sys
from itertools import product

import msgspec
import numpy as np
import psutil
import pytest
import torch

from starling.gossip.errors import ConfigError, GossipError
from starling.kernels import codec, company, overlap
from starling.kernels import rules as combining
from starling.kernels.schema import ALL_RULES, CODECS, RULES, TRANSPORTS, Case, RuleCase
from starling.node.cli.main import main
from starling.node.cli.research import bench
from starling.node.config import frame_limits, toml
from starling.node.config import manifest as manifests
from starling.node.config.assignments import assignments
from starling.node.config.schema import Manifest
from tests.harness.processes import until_ended
from tests.harness.schemas import valid
from tests.harness.texts import words

KEYS = {
    *words(
        "codec d encode_gb_s decode_gb_s round_trip_gb_s bytes_per_parameter index_bits_over_entropy peak_extra_bytes memcpy_gb_s beside",
        "beside_gb_s beside_over_quiet",
    )
}


@pytest.fixture
def child(monkeypatch):
    """Stand in for the measuring process; return the arguments that it was started with."""
    started = []

    def run(command, **_):
        module, name, d, *arguments = command[2:]
        started.append((name, int(d), *map(str, arguments)))
        if module.endswith("codec"):
            case = Case(
                codec=name,
                d=int(d),
                encode_gb_s=2.0,
                decode_gb_s=1.0,
                round_trip_gb_s=1.5,
                bytes_per_parameter=0.5,
                index_bits_over_entropy=None,
                peak_extra_bytes=None if arguments[0] == "9" else 4 * int(d),
                memcpy_gb_s=10.0,
                beside=int(arguments[3]),
                beside_over_quiet=0.745 if int(arguments[3]) else None,
            )
        else:
            count = int(arguments[0])
            case = RuleCase(rule=name, n=count, d=int(d), ours_cpu_s=0.5, peer_cpu_s=4.0, ratio=8.0, max_error=2e-7)
        return subprocess.CompletedProcess(command, 0, msgspec.json.encode(case).decode(), "")

    monkeypatch.setattr(subprocess, "run", run)
    return started


@pytest.mark.slow
def test_a_codec_is_measured_in_a_process_of_its_own(capsys):
    """End to end, once: the figures are consistent, and progress does not go to standard output."""
    assert main(["bench", "codec", "--d", "200000", "--codec", "top_k:0.01+int4", "--repeat", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    (case,) = valid("bench-codec", out)["cases"]
    assert case.keys() == KEYS
    assert (case["codec"], case["d"]) == ("top_k:0.01+int4", 200_000)
    times = 1 / case["encode_gb_s"] + 1 / case["decode_gb_s"]
    assert times == pytest.approx(1 / case["round_trip_gb_s"], rel=1e-6)
    assert case["bytes_per_parameter"] == pytest.approx(
        0.0153, abs=0.0005
    )  # 8.1 bits for the index and 4.25 for the value, of 1 % of the coordinates
    assert 1.0 <= case["index_bits_over_entropy"] < 1.15
    assert case["memcpy_gb_s"] > 0
    assert err == ""


@pytest.mark.slow
def test_the_child_refuses_what_it_does_not_know_in_one_line(capsys):
    assert main(["bench", "codec", "--d", "100", "--codec", "mask:2+int4"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err == ["starling: --codec mask:2+int4: codec: ratio must be finite and > 0 and <= 1, got 2.0"]


@pytest.mark.parametrize(
    "arguments",
    [
        "codec --d 0",
        "codec --d 99999999999",
        "codec --d many",
        "codec --repeat 0",
        "codec --threads -1",
        "codec --beside -1",
        "codec --beside 1025",
        "rules --d 0",
        "rules --repeat 0",
        "rules --n 7",
        "rules --n 65",
    ],
)
def test_impossible_numbers_are_refused_before_anything_starts(arguments, child):
    assert main(["bench", *arguments.split()]) == 2
    assert child == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("link --message-bytes 0", "--message-bytes: must be in [1, 268435456], got 0"),
        ("link --message-bytes 268435457", "--message-bytes: must be in"),
        ("link --transport udp", "--transport: 'udp' is unknown, choose one of starling, tcp, tls"),
        ("link --seconds 0", "--seconds: must be in"),
        ("link --seconds nan", "--seconds: must be in"),
        ("link --repeat 0", "--repeat: must be in"),
        ("link --rate -1", "--rate: must be in"),
        ("link --listen 127.0.0.1", "--listen: must be HOST:PORT"),
        ("link --connect :80", "--connect: must be HOST:PORT"),
        ("link --connect h:70000", "--connect: must be HOST:PORT"),
        ("link --listen a:1 --connect b:1", "two ends of a link"),
        ("overlap --model mlp", "--model: 'mlp' is unknown, choose one of cnn, gpt"),
        ("overlap --pace free", "--pace: 'free' is unknown, choose one of steps, clock"),
        ("overlap --driver crew", "--driver: 'crew' is unknown, choose one of task, script"),
        ("overlap --d 9999", "--d: must be in [10000, 4294967295], got 9999"),
        ("overlap --mbit 0", "--mbit: must be in [0.1, 1e+06], got 0"),
        ("overlap --seconds nan", "--seconds: must be in"),
        ("overlap --repeat 0", "--repeat: must be in"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(arguments, words, child, capsys):
    assert main(["bench", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert child == []


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_are_measured_between_two_processes(transport, capsys):
    """Each transport once: a message may be longer than a record, and longer than what a node accepts from strangers."""
    options = ["--transport", transport, "--message-bytes", "9000000", "--seconds", "0.1", "--repeat", "1", "--json"]
    assert main(["bench", "link", *options]) == 0
    out, err = capsys.readouterr()
    (case,) = valid("bench-link", out)["cases"]
    assert list(case) == ["message_bytes", "rtt_ms", "rate_mbit", "transport", "mb_s", "tx_cpu_s_per_gib", "rx_cpu_s_per_gib"]
    assert (case["message_bytes"], case["transport"]) == (9_000_000, transport)
    assert case["mb_s"] > 1.0
    assert min(case["tx_cpu_s_per_gib"], case["rx_cpu_s_per_gib"]) > 0.0
    assert err == ""


def test_every_model_pace_driver_and_link_is_a_case_of_the_overlap(monkeypatch, capsys):
    """The table and the JSON list the cases in the same order."""

    def measured(what, kind, module, model, d, mbit, pace, driver, *_):
        return kind(
            model=model,
            d=d,
            link=mbit,
            pace=pace,
            driver=driver,
            plain_steps_s=5.0,
            alone_steps_s=4.0,
            swarm_steps_s=3.9,
            kept=0.78,
            kept_undisturbed=0.8,
            ratio=0.975,
            undisturbed=None,
            peak_bytes_per_parameter=41.25,
            cores=0,
            exchanges=7,
            payload_bytes=1000,
            load=(0.5, 2.5),
        )

    monkeypatch.setattr(bench, "_child", measured)
    assert main(["bench", "overlap", "--json"]) == 0
    cases = valid("bench-overlap", capsys.readouterr().out)["cases"]
    each = [(case["model"], case["pace"], case["driver"], case["link"]) for case in cases]
    assert each == [*product(("cnn", "gpt"), ("steps", "clock"), ("task", "script"), (20.0, 1000.0))]
    assert {(case["model"], case["d"]) for case in cases} == {("cnn", 400_000), ("gpt", 10_000_000)}
    one = "--model cnn --d 50000 --pace clock --driver script --mbit 20"
    assert main(["bench", "overlap", *one.split()]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row == ["cnn", "50,000", "20", "clock", "script", "5.00", "4.00", "3.90", "0.780", "0.800", "0.975", "–", "41.2", "–", "0.5–2.5"]


@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_the_models_of_an_overlap_have_about_the_parameters_asked_for(model, tmp_path):
    """Their data exist too, and nodes accept the manifest."""
    for d in (100_000, 1_000_000, 10_000_000):
        chosen = assignments(overlap.task_of(model, d, tmp_path))
        agreed = toml.apply_set(Manifest(), chosen)
        manifests.check(agreed)
        assert abs(frame_limits.parameters(agreed) - d) < 0.25 * d


@pytest.mark.real
@pytest.mark.acceptance
@pytest.mark.parametrize(("pace", "driver"), [("steps", "task"), ("steps", "script"), ("clock", "script")])
def test_two_nodes_are_measured_alone_and_together(pace, driver, capsys):
    """End to end, once; the ratio itself is not checked, since other processes use the cores."""
    options = f"--model cnn --d 20000 --mbit 20 --pace {pace} --driver {driver} --seconds 1 --json"
    assert main(["bench", "overlap", *options.split()]) == 0
    (case,) = valid("bench-overlap", capsys.readouterr().out)["cases"]
    assert case["exchanges"] > 0
    assert case["payload_bytes"] > 0
    assert case["ratio"] == pytest.approx(case["swarm_steps_s"] / case["alone_steps_s"], rel=0.01)
    assert case["kept"] == pytest.approx(case["swarm_steps_s"] / case["plain_steps_s"], rel=0.01)
    assert 0.1 < case["ratio"] < 3.0


@pytest.mark.acceptance
@pytest.mark.real
@pytest.mark.slow
def test_the_two_ends_of_a_link_may_be_two_commands(capsys):
    words = [sys.executable, "-m", "starling.node.cli.main", "bench", "link", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as listening:
        try:
            address = listening.stderr.readline().split()[-1]
            options = ["--transport", "tcp", "--message-bytes", "1000", "--seconds", "0.1", "--repeat", "1", "--rate", "100"]
            assert main(["bench", "link", "--connect", address, *options]) == 0
            row = capsys.readouterr().out.splitlines()[1].split()
            assert (row[:2], row[3]) == (["1,000", "tcp"], "100")
            assert main(["bench", "link", "--listen", address]) == 2
            assert "Address already in use" in capsys.readouterr().err
            listening.send_signal(signal.SIGINT)
            assert listening.wait(10.0) == 130
        finally:
            listening.kill()
    assert main(["bench", "link", "--connect", address, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nobody answers; start `starling bench link --listen" in line


def test_all_codecs_at_every_length_on_one_thread_unless_options_say_otherwise(child, monkeypatch, capsys):
    monkeypatch.setattr(bench, "cores_there", lambda: 7)
    assert main(["bench", "codec", "--codec", "full+int4", "--threads", "0", "--json"]) == 0
    assert child.pop() == ("full+int4", 10_000_000, "5", "cpu", "7", "0")
    capsys.readouterr()
    assert main(["bench", "codec", "--d", "1000", "--d", "2000", "--json"]) == 0
    assert child == [(name, d, "5", "cpu", "1", "0") for d in (1000, 2000) for name in CODECS]
    cases = valid("bench-codec", capsys.readouterr().out)["cases"]
    assert [(case["codec"], case["d"]) for case in cases] == [started[:2] for started in child]


def test_all_rules_at_every_length_unless_options_say_otherwise(child, capsys):
    assert main(["bench", "rules", "--d", "1000", "--d", "2000", "--json"]) == 0
    assert child == [(name, d, "16", "5") for d in (1000, 2000) for name in RULES]
    cases = valid("bench-rules", capsys.readouterr().out)["cases"]
    assert [(case["rule"], case["d"], case["n"]) for case in cases] == [(*started[:2], 16) for started in child]


@pytest.mark.parametrize(
    ("arguments", "row"),
    [
        ("codec --codec full+int4", "full+int4 10,000,000 2.00 1.00 1.50 0.5000 – 1.000 10.00"),
        ("codec --codec full+int4 --repeat 9", "full+int4 10,000,000 2.00 1.00 1.50 0.5000 – – 10.00"),
        ("codec --codec full+int4 --beside 3", "full+int4 10,000,000 2.00 1.00 1.50 0.5000 – 1.000 10.00 74%"),
        ("rules --rule median", "median 16 1,000,000 0.5000 4.0000 8.0 2.0e-07"),
    ],
)
def test_a_table_has_a_row_for_each_case_and_a_dash_for_missing_figures(arguments, row, child, capsys):
    """Memory is given as a share of the vector."""
    assert main(["bench", *arguments.split()]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == row.split()


def test_a_child_that_dies_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, -9, stdout="", stderr=""))
    with pytest.raises(GossipError, match=r"full.int4 at d = 10: its process ended with -9; it may need"):
        bench.measure("codec", Case, ["full+int4"], [10], 10, 1)


def test_the_command_line_does_not_import_torch():
    program = "import sys; from starling.node.cli.main import main; main(['bench', 'codec', '--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("name", CODECS)
def test_every_measured_codec_decodes_its_input(name):
    """The speed of a codec that loses the vector would mean nothing."""
    timed, x = codec.coder(name, 6400, "cpu"), torch.randn(6400, generator=torch.Generator().manual_seed(1))
    where, values = timed.decode(timed.encode(x, 3))
    taken = x[where] if isinstance(where, torch.Tensor) else where.take(x)
    assert ((values - taken).square().sum() / taken.square().sum()) < 0.04


@pytest.mark.acceptance
@pytest.mark.slow
def test_speed_with_busy_processes_is_relative_to_the_quiet_speed_of_the_same_run(capsys):
    assert main(["bench", "codec", "--d", "1000", "--codec", "full+int4", "--beside", "1", "--json"]) == 0
    (case,) = valid("bench-codec", capsys.readouterr().out)["cases"]
    assert case["beside"] == 1
    assert case["beside_gb_s"] > 0
    assert case["beside_over_quiet"] > 0


def test_busy_processes_spin_and_end_with_what_is_measured_beside_them():
    """They end on Ctrl-C too, and leave no zombie."""
    with contextlib.suppress(KeyboardInterrupt), company.busy(2) as pids:
        assert all(psutil.Process(pid).is_running() for pid in pids)
        assert {psutil.Process(pid).nice() for pid in pids} == {psutil.Process().nice()}
        raise KeyboardInterrupt
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
def test_busy_processes_end_when_the_measuring_process_is_killed():
    """After `kill -9` the measuring process cannot end its children itself."""
    program = (
        "import os, signal\nfrom starling.kernels import company\n"
        "with company.busy(1) as pids: print(*pids, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    until_ended(int(done.stdout), 20.0)
    assert done.returncode == -9


def test_index_entropy_is_that_of_choosing_k_of_d():
    assert codec.entropy_bits(10, 3) == pytest.approx(math.log2(math.comb(10, 3)))
    assert codec.entropy_bits(10**8, 10**6) / 10**6 == pytest.approx(8.079, abs=0.001)


def test_the_peak_counts_memory_allocated_and_freed_in_between():
    """Memory that was allocated before, or is still allocated at the end, does not count."""
    kept = np.ones(20_000_000, np.uint8)
    extra, left = codec.peak_extra("cpu", lambda: int(np.ones(50_000_000, np.uint8).sum()) + int(kept[0]))
    assert left == 50_000_001
    if extra is None:
        pytest.skip("this system does not tell")
    assert extra == pytest.approx(50e6, rel=0.15)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("int4", r"must be SELECTOR\[:RATIO\]\+QUANTIZER, got 'int4'"),
        ("mask:x+int4", r"must be SELECTOR\[:RATIO\]\+QUANTIZER"),
        ("nothing:0.1+int4", "'nothing' is unknown, choose one of"),
        ("full+int9", "'int9' is unknown, choose one of"),
    ],
)
def test_an_unknown_codec_is_a_config_error(name, said):
    with pytest.raises(ConfigError, match=said):
        codec.coder(name, 100, "cpu")


PEERS = {
    "mean": lambda b: lambda x: x.mean(dim=0),
    "median": lambda b: lambda x: x.quantile(0.5, dim=0),
    "trimmed_mean": lambda b: lambda x: x.sort(dim=0).values[b:-b].mean(dim=0),
    "nna": lambda b: lambda x: x[(x - x[0]).norm(dim=1).argsort()[: len(x) - b]].mean(dim=0),
    "nnm": lambda b: lambda x: x[torch.cdist(x, x).argsort(dim=1)[:, : len(x) - b]].mean(dim=1),
}
"""Definitions, in place of the other library."""


@pytest.mark.parametrize("name", PEERS)
def test_a_rule_is_measured_beside_its_definition_and_gives_the_same(name):
    """For dimensions above the longest warm-up, and rules that return one vector or all of them."""
    case = combining.measure(name, 20_000, 10, 2, PEERS)
    assert (case.rule, case.n, case.d) == (name, 10, 20_000)
    assert case.ratio == pytest.approx(case.peer_cpu_s / case.ours_cpu_s)
    assert case.max_error < 1e-5


def test_the_geometric_median_is_compared_with_one_in_double_precision():
    """In float32 the other library is too imprecise at ten million coordinates to say which of the two is wrong."""
    asked = []

    def peer(b):
        def center(x):
            asked.append(x.dtype)
            z = x.mean(0)
            for _ in range(60):
                w = 1 / ((x - z) ** 2).sum(1) ** 0.5
                z = (x * w[:, None]).sum(0) / w.sum()
            return z

        return center

    assert combining.measure("geometric_median", 3000, 10, 1, {"geometric_median": peer}).max_error < 1e-5
    assert str(asked[-1]) == "float64"


def test_a_fifth_of_the_benchmarked_vectors_are_distant_outliers():
    x = combining.vectors(16, 5000)
    assert combining.bad(16) == 3
    assert x[13:].mean() == pytest.approx(3, abs=0.1)
    assert x[:13].mean() == pytest.approx(0, abs=0.1)
    assert x.std(dim=1).diff().abs().max() < 0.1


def test_every_rule_offered_has_its_counterpart():
    if importlib.util.find_spec("byzfl") is None:
        pytest.skip("byzfl is not installed")
    before = sys.modules.pop("byzfl", None)
    try:
        assert combining.byzfl().keys() == set(ALL_RULES)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "byzfl"]:
            del sys.modules[name]
        if before is not None:
            sys.modules["byzfl"] = before


def test_a_slow_peer_is_not_repeated_for_long():
    calls = []
    combining.timed(lambda: calls.append(sum(range(200_000))), 50, 1e-4)
    assert len(calls) == 1


def test_without_the_other_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^bench rules compares with byzfl, which is not installed; try `pip install 'starling"):
        combining.byzfl()


def test_an_unknown_rule_is_a_config_error():
    with pytest.raises(ConfigError, match="--rule: 'fastest' is unknown, choose one of mean, median"):
        combining.measure("fastest", 10, 8, 1, {})


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("byzfl") is None, reason="byzfl is not installed")
def test_a_rule_is_measured_beside_byzfl_in_a_process_of_its_own(capsys):
    asked = ["--rule", "nnm", "--rule", "multi_krum"]
    assert main(["bench", "rules", "--d", "3000", "--repeat", "1", "--json", *asked]) == 0
    out, err = capsys.readouterr()
    cases = valid("bench-rules", out)["cases"]
    assert [case["rule"] for case in cases] == ["nnm", "multi_krum"]
    for case in cases:
        assert case.keys() == {"rule", "n", "d", "ours_cpu_s", "peer_cpu_s", "ratio", "max_error"}
        assert case["max_error"] < 1e-5
    assert err == ""
