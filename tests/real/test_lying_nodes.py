"""Real nodes with one liar: the lies of the virtual-time tests, by processes on real sockets."""

import sys
import time
from statistics import mean

import pytest

from tests.harness.processes import ENDLESS, OWN, ROOT, starling, status_of, terminals, training, until

NODES, ROUNDS = 4, 60
LOCAL_STEPS = 10  # of a round
POINTS = 0.02  # accuracy by which equal runs of real processes differ; in virtual time the bound is one point
AGREED = ENDLESS.replace("partition.shards=2", f"partition.shards={NODES}")
TO_THE_END = AGREED.replace("pace.rounds=0", f"pace.rounds={ROUNDS}") + f" --set pace.quorum={NODES} --set pace.local_steps={LOCAL_STEPS}"

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.acceptance]


def with_one_that_is(lie: str, agreed: str, terminal, folder) -> list:
    """Run honest nodes and one that lies from the start; return the folders of the honest."""
    folder.mkdir()
    creator = terminal(f"starling create {agreed} {OWN} --shard 0 --dir 0", folder, "0")
    creator.until(creator.first_line)
    until("the creator does not begin", lambda: status_of(folder / "0"))
    liar = f"env PYTHONPATH={ROOT / 'src'}:{ROOT} {sys.executable} -m tests.harness.lying_node {lie}"
    for index in range(1, NODES):
        invite = starling("invite", "--dir", "0", cwd=folder).split()[-1]
        command = liar if index == NODES - 1 else "starling"
        terminal(f"{command} join {invite} {OWN} --shard {index} --dir {index}", folder, str(index))
    return [folder / str(index) for index in range(NODES - 1)]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("preset", ["custom", "vouched"])
def test_a_peer_that_reports_all_as_late_costs_real_nodes_no_steps_or_accuracy(tmp_path, warm_engines, preset):
    """Compared with one that truthfully refuses all exchanges."""
    steps, accuracy = {}, {}
    for lie in ("useless", "late"):
        with terminals() as terminal:
            folders = with_one_that_is(lie, f"{TO_THE_END} --set preset={preset}", terminal, tmp_path / lie)
            ended = [
                until("it does not finish", lambda it=it: (now := status_of(it)) and now.state == "finished" and now, patience_s=180.0)
                for it in folders
            ]
        steps[lie] = min(it.local_steps for it in ended) / (ROUNDS * LOCAL_STEPS)
        accuracy[lie] = mean(it.value for it in ended)
        sys.stdout.write(f"\n{preset}, {lie}: {steps[lie]:.2f} of the local steps, accuracy {accuracy[lie]:.3f}\n")
    assert steps["late"] >= 0.95 * min(1.0, steps["useless"])
    assert accuracy["late"] >= accuracy["useless"] - POINTS


@pytest.mark.timeout(200)
def test_a_real_node_that_sends_garbage_is_refused_by_all(tmp_path, warm_engines):
    with terminals() as terminal:
        folders = with_one_that_is("garbled", AGREED, terminal, tmp_path / "garbled")
        until("they do not begin", lambda: all((now := training(it)) and now.members >= NODES - 1 for it in folders))
        honest = {status_of(it).peer for it in folders}

        def shut_out(folder):
            now = status_of(folder)
            return {it.peer for it in now.peers if it.state in {"quarantined", "banned"}} if now else set()

        until("it is not shut out", lambda: all(shut_out(it) for it in folders))
        before = [status_of(it).exchanges.committed for it in folders]
        until(
            "they do not go on",
            lambda: all((now := status_of(it)) and now.exchanges.committed > was + 10 for it, was in zip(folders, before, strict=True)),
        )
        assert all(len(shut_out(it)) == 1 and not shut_out(it) & honest for it in folders)


@pytest.mark.timeout(300)
def test_a_real_node_that_says_nothing_is_named_by_most_and_soon_costs_little(tmp_path, warm_engines):
    """Rounds take a twentieth of a second. A node waited ten seconds for it every few rounds, and the others for that one."""
    with terminals() as terminal:
        folders = with_one_that_is("mute", AGREED, terminal, tmp_path / "mute")
        until("they do not begin", lambda: all((now := training(it)) and now.members == NODES for it in folders))
        honest, began = {status_of(it).peer for it in folders}, time.monotonic()

        def naming() -> list[str]:
            return [event.text.split()[0] for it in folders for event in status_of(it).events if event.name == "peer_mute"]

        until("it is not named", lambda: len(naming()) >= NODES - 2, patience_s=60.0)
        sys.stdout.write(f"\nnamed by {len(naming())} of {NODES - 1} after {time.monotonic() - began:.0f} s\n")
        assert not honest.intersection(naming())
        before = min(status_of(it).round for it in folders)
        time.sleep(10.0)
        per_s = (min(status_of(it).round for it in folders) - before) / 10.0
        sys.stdout.write(f"{per_s:.1f} rounds a second\n")
        assert per_s >= 3.0
        assert not any(row.faults for it in folders for row in status_of(it).peers)
