"""A scrape is parsed by Prometheus' own parsers, invents no figures, and is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from starling.node.status.metrics import MAX_PEERS, PEER_STATES, PLAIN, exposition, health
from starling.node.status.snapshot import Exchanges, PeerStatus
from tests.harness.scrape import PARSERS, full
from tests.harness.snapshots import bare, snapshot
from tests.strategies import examples

NAMES = st.text(st.characters(codec="utf-8"), max_size=20)


def samples(found, accept=""):
    """Return what a scraper reads: {(name, labels): value}."""
    body, _ = exposition(found, accept)
    families = PARSERS[accept][1](body.decode())
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}


@pytest.mark.parametrize("accept", PARSERS)
def test_both_formats_parse_to_the_same_figures(accept):
    _, kind = exposition(full(), accept)
    assert kind == PARSERS[accept][0]
    assert samples(full(), accept) == samples(full())


def test_figures_are_those_of_the_snapshot():
    found = samples(full())
    assert found["starling_round", ()] == 42
    assert found["starling_local_steps_total", ()] == 840
    assert found["starling_loss", ()] == 0.2134
    assert found["starling_value", (("metric", "accuracy"),)] == 0.934
    assert found["starling_exchanges_total", (("outcome", "timeout"),)] == 3
    assert found["starling_resident_memory_bytes", ()] == 5e8
    assert found["starling_tasks", ()] == 93
    assert found["starling_cpu_cores", ()] == 1.2
    assert found["starling_consensus_distance", ()] == 0.01
    assert found["starling_peers", (("state", "alive"),)] == 1
    assert found["starling_state", (("state", "training"),)] == 1
    assert found["starling_peer_rtt_seconds", (("peer", "12D3KooWalive01"),)] == 0.01
    assert found["starling_healthy", ()] == 1


def test_every_outcome_and_state_has_its_series_from_the_beginning():
    """A series that appears with its first count has no rate at that moment."""
    found = samples(bare())
    for outcome in Exchanges.__struct_fields__:
        assert found["starling_exchanges_total", (("outcome", outcome),)] == 0
    assert {dict(labels)["state"] for name, labels in found if name == "starling_peers"} == set(PEER_STATES)
    assert sum(value for (name, _), value in found.items() if name == "starling_state") == 1


def test_unknown_values_are_absent_and_never_0():
    known = {name for name, _ in samples(bare())}
    for name in ("loss", "value", "steps_per_second", "consensus_distance", "cpu_cores", "gpu_busy_ratio", "rounds"):
        assert f"starling_{name}" not in known
    assert {name for name, _ in samples(full())} > known


def test_strangers_create_no_series():
    """Peers choose their ids, and the database would store a series for each."""
    crowd = tuple(PeerStatus(f"stranger{n}", "alive") for n in range(4000))
    few = tuple(PeerStatus(f"peer{n:02}", "alive", committed=n) for n in range(1, 30))
    mine = PeerStatus("mine", "alive", trusted=True)
    found = samples(snapshot(peers=(*crowd, *few, mine)))
    shown = {dict(labels)["peer"] for name, labels in found if name == "starling_peer_score"}
    assert shown == {"mine", *(f"peer{n:02}" for n in range(29, 29 - MAX_PEERS + 1, -1))}
    assert found["starling_peers", (("state", "alive"),)] == 4030
    assert len(found) < 250


@pytest.mark.slow
@examples(30)
@given(NAMES, NAMES)
def test_label_values_are_escaped(name, peer):
    odd = snapshot(name=name, peers=(PeerStatus(peer, "alive", committed=1),))
    plain, as_open = samples(odd), samples(odd, "application/openmetrics-text; version=1.0.0")
    (labels,) = (dict(labels) for key, labels in plain if key == "starling_node_info")
    assert labels["name"] == name
    assert ("starling_peer_score", (("peer", peer),)) in plain
    assert plain.keys() == as_open.keys()


def test_a_scraper_that_asks_for_anything_else_gets_text():
    for accept in ("*/*", "text/html;q=0.3", "application/openmetrics", "\x00" * 1000, "text/plain;version=1e999"):
        assert exposition(full(), accept)[1] == PLAIN


@pytest.mark.parametrize(
    ("changes", "well", "words"),
    [
        ({}, True, "training"),
        ({"problem": "checkpoints cannot be written; free some disk space"}, False, "training: checkpoints cannot be"),
        ({"state": "failed"}, False, "failed"),
        ({"state": "finished"}, True, "finished"),
    ],
)
def test_the_health_text_is_one_line(changes, well, words):
    found = health(structs.replace(full(), **changes))
    assert found[0] is well
    assert found[1].startswith(words)
    assert "\n" not in found[1]
