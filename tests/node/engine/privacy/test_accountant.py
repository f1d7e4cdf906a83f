"""The accountant's figures for the privacy spent, and its file, which must never understate them."""

import re
import sys
from pathlib import Path

import pytest
import trio

from starling.gossip.errors import ConfigError
from starling.node.config.schema import NodeConfig, PrivacySection
from starling.node.engine.privacy.accountant import LOT, Accountant, Lot, epsilon
from starling.node.simulate.virtual.swarm import VirtualSwarm
from tests.harness.engines import manifest

TABLE = (  # q, σ, T, ε at δ = 1e-5: Rényi accounting at integer orders
    (0.01, 0.6, 1_000, 9.10),
    (0.01, 1.0, 1_000, 2.11),
    (0.01, 1.0, 10_000, 6.72),
    (0.01, 2.0, 10_000, 2.35),
    (0.001, 0.6, 10_000, 3.50),
    (0.001, 1.0, 100_000, 1.79),
    (0.02, 1.1, 3_000, 6.41),
    (1.0, 10.0, 100, 4.75),
)


DOCUMENTED = Path(__file__).parents[4] / "docs" / "privacy.md"


def spent(path=None, *, noise=1.0, rate=0.02, most=0.0):
    return Accountant(path, noise=noise, rate=rate, delta=1e-5, most=most)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise", "steps", "expected"), TABLE)
def test_epsilon_matches_reference_values(rate, noise, steps, expected):
    """At integer orders within 1 % of values computed by other code; with the fractional orders that a node also tries, equal or up
    to a tenth tighter.
    """
    lots = [Lot(noise, rate, steps)]
    assert epsilon(lots, 1e-5, [float(order) for order in range(2, 257)]) == pytest.approx(expected, rel=0.01)
    assert 0.9 * expected < epsilon(lots, 1e-5) <= 1.005 * expected


def test_the_table_of_the_documentation_is_right():
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d,]+) \| ([\d.]+) \|$", DOCUMENTED.read_text(), re.MULTILINE)
    assert len(rows) >= 10
    for rate, noise, steps, expected in rows:
        assert f"{epsilon([Lot(float(noise), float(rate), int(steps.replace(',', '')))], 1e-5):.2f}" == expected


def test_steps_of_every_kind_add_up():
    one, other = Lot(1.0, 0.02, 100), Lot(2.0, 0.1, 50)
    assert epsilon([], 1e-5) == epsilon([Lot(1.0, 0.02, 0)], 1e-5) == 0.0
    assert epsilon([one, one], 1e-5) == epsilon([Lot(1.0, 0.02, 200)], 1e-5)
    assert max(epsilon([one], 1e-5), epsilon([other], 1e-5)) < epsilon([one, other], 1e-5)


def test_steps_are_written_down_before_they_are_taken(tmp_path):
    """A crash at any moment leaves a sum that is too large by at most one batch of steps, never too small."""
    path, counts = tmp_path / "p.json", []
    first = spent(path)
    assert not path.exists(), "nothing was spent by looking"
    for taken in range(1, 2 * LOT + 2):
        assert first.count_step()
        again = spent(path)
        counts.append(sum(lot.steps for lot in again.lots) - taken)
    assert min(counts) == 0
    assert max(counts) < LOT
    first.write()
    assert spent(path).epsilon() == first.epsilon()


def test_privacy_spent_with_other_noise_or_data_adds_up(tmp_path):
    path = tmp_path / "p.json"
    for noise, rate in ((1.0, 0.02), (2.0, 0.02), (2.0, 0.05)):
        now = spent(path, noise=noise, rate=rate)
        before = now.epsilon()
        now.count_step()
        now.write()
        assert now.epsilon() > before
    assert [(lot.noise, lot.rate, lot.steps) for lot in now.lots] == [(1.0, 0.02, 1), (2.0, 0.02, 1), (2.0, 0.05, 1)]


def test_steps_end_exactly_at_the_budget():
    limited, free = spent(most=2.0), spent()
    taken = 0
    while limited.count_step():
        taken += 1
        free.count_step()
    assert limited.epsilon() == free.epsilon() <= 2.0 < limited.epsilon(1)
    assert taken > LOT
    assert limited.problem == "epsilon would exceed privacy.max_epsilon = 2"


def test_steps_are_refused_if_the_account_cannot_be_written(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    now = spent(folder / "p.json")
    folder.rmdir()
    assert not now.count_step()
    assert "p.json cannot be written: No such file" in now.problem
    folder.mkdir()
    assert now.count_step(), "it tries again"
    assert now.problem == ""


@pytest.mark.parametrize("damage", [b"", b"{", b'{"lots": [[1.0, 2.0, 3]]}', b'{"lots": [], "x": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_stops_the_node_and_says_what_to_do(tmp_path, damage):
    """Starting again at 0 is a claim about the data, which only the owner can make."""
    path = tmp_path / "p.json"
    path.write_bytes(damage)
    with pytest.raises(ConfigError, match=r"p\.json records what your data have cost and cannot be read: it is damaged; .* mv ") as error:
        spent(path)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == damage


def test_without_the_accountant_noise_is_refused_and_no_noise_needs_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", None)
    assert epsilon([], 1e-5) == 0.0
    with pytest.raises(ConfigError, match=r"^privacy\.noise: .*pip install 'starling-swarm\[privacy\]'$"):
        spent(noise=1.2345)


@pytest.mark.slow
def test_a_whole_node_says_what_it_spent_and_that_its_budget_is_over(autojump_clock):
    """The status has ε and δ, one event marks the end of the budget, and the node continues to the last round."""
    from starling.node.daemon.observe.snapshot import take_snapshot

    section = PrivacySection(noise=1.0, max_epsilon=2.0)
    config = NodeConfig(linger_s=1e6, threads=1, privacy=section)

    async def main():
        agreed = manifest("digits", 2, rounds=25, evaluate_every=50)
        swarm = VirtualSwarm(agreed, config=config)
        async with swarm.running(2):
            with trio.fail_after(300):
                while any(virtual.node.progress.state != "finished" for virtual in swarm.nodes.values()):  # noqa: ASYNC110
                    await trio.sleep(0.5)
            return [take_snapshot(virtual.node) for virtual in swarm.nodes.values()]

    for snapshot in trio.run(main, clock=autojump_clock):
        assert snapshot.round == 25
        assert snapshot.exchanges.committed >= 20
        assert 1.5 < snapshot.epsilon <= 2.0
        assert snapshot.delta == 1e-5
        [event] = [event for event in snapshot.events if event.name == "data_at_rest"]
        assert "privacy.max_epsilon = 2; it still takes part in exchanges" in event.text
