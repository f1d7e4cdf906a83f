"""The engine's part of broadcast messages: equal outer parameters, invalid messages, late joiners, checkpoints, and divergence."""

import msgspec
import pytest
import safetensors.torch
import torch

from starling.gossip.exchange.attestation import digest
from starling.gossip.exchange.relays import DEPTH
from starling.gossip.mix.broadcast_codec import ANCHOR_BYTES, anchor_digest
from starling.node.config.schema import CompressSection, OptimizerSection, OverlaySection, PrivacySection
from starling.node.engine import tensor_file
from starling.node.engine.worker import Worker
from starling.node.rpc import calls
from tests.harness.engines import done, manifest, open_request, opened, refused_as, run, x_of
from tests.harness.sections import taken

COMPRESS = taken(CompressSection, select="chunk_top_k", ratio=0.1, response="spread2")
AGREED = msgspec.structs.replace(
    manifest(mix="sparse_outer", nodes=4, compress=COMPRESS, rounds=100), overlay=OverlaySection(kind="complete")
)


def receive(engine, peer, published):
    return engine.handle(calls.VerifyUpdate(peer, published.digest, published.payload))


def changed(published, payload):
    return msgspec.structs.replace(published, payload=payload, digest=digest(payload))


def trained(engines, round=0):
    """Do the local steps of a round; return the message that each node publishes."""
    for engine in engines.values():
        done(engine, calls.Train(round, 3))
    return {name: done(engine, calls.Publish(round)) for name, engine in engines.items()}


def mixed(engines, published, round=0, missed=()):
    """Deliver all messages but the pairs (to, of) in `missed`, and mix; return the replies to Mix."""
    for name, engine in engines.items():
        for peer in engines.keys() - {name}:
            if (name, peer) not in missed:
                assert receive(engine, peer, published[peer]) == calls.Done()
    return {name: done(engine, calls.Mix(round, tuple(engines.keys() - {name}))) for name, engine in engines.items()}


@pytest.fixture
def engines():
    return {name: opened(AGREED, shard, name) for shard, name in enumerate("abcd")}


def test_all_nodes_have_equal_new_outer_parameters_after_a_round(engines):
    """The models trained further differ: each node adds a share of its unsent residual."""
    first = x_of(engines["a"]).clone()
    for round_ in range(2):
        published = trained(engines, round_)
        assert not any(reply.diverged for reply in mixed(engines, published, round_).values())
        assert all(torch.equal(x_of(engine), x_of(engines["a"])) for engine in engines.values())
        assert len({anchor_digest(engine.replica.x) for engine in engines.values()}) == len(engines)
    assert not torch.equal(x_of(engines["a"]), first)


def test_a_message_has_at_most_its_announced_length(engines):
    for published in trained(engines).values():
        assert 0 < len(published.payload) <= published.longest


def late(engine, author, published, round=0):
    """Deliver what `author` published in a round to an engine that has mixed that round already."""
    return engine.handle(calls.VerifyEarlier(author, published.digest, published.payload, round))


def closed(engines, first):
    """Deliver all messages of `first` and later rounds until the round before no longer changes; return the last replies to Mix."""
    for round_ in range(first, first + DEPTH + 1):
        replies = mixed(engines, trained(engines, round_), round_)
        assert round_ == first + DEPTH or not any(reply.diverged for reply in replies.values())
    return replies


def one_anchor(engines):
    return len({anchor_digest(x_of(engine)) for engine in engines.values()}) == 1


@pytest.mark.parametrize("after", range(DEPTH))
def test_a_late_message_is_added_to_its_own_round_bit_for_bit(engines, after):
    """Other nodes forward it during later rounds, which add further messages."""
    published = trained(engines)
    mixed(engines, published, missed={("b", "a"), ("c", "a")})
    for round_ in range(1, 1 + after):
        mixed(engines, trained(engines, round_), round_)
        assert not one_anchor(engines)
    following = trained(engines, 1 + after)
    for name in "bc":
        assert late(engines[name], "a", published["a"]) == calls.Done()
    assert not any(reply.diverged for reply in mixed(engines, following, 1 + after).values())
    assert one_anchor(engines)
    for round_ in range(2 + after, 5 + after):
        assert not any(reply.diverged for reply in mixed(engines, trained(engines, round_), round_).values())
        assert one_anchor(engines)


def test_late_messages_of_seeded_scalars_are_added_bit_for_bit():
    agreed = msgspec.structs.replace(
        manifest(mix="seeds", nodes=4, rounds=100, compress=taken(CompressSection, select="full", response="int8_nearest")),
        overlay=OverlaySection(kind="complete"),
        optimizer=taken(OptimizerSection, kind="sgd"),
    )
    engines = {name: opened(agreed, shard, name) for shard, name in enumerate("abc")}
    published = trained(engines)
    mixed(engines, published, missed={("b", "a")})
    following = trained(engines, 1)
    assert late(engines["b"], "a", published["a"]) == calls.Done()
    mixed(engines, following, 1)
    assert one_anchor(engines)


def test_late_messages_of_several_rounds_are_added_to_each_round(engines):
    first = trained(engines)
    mixed(engines, first, missed={("b", "a")})
    second = trained(engines, 1)
    mixed(engines, second, 1, missed={("b", "a"), ("b", "c")})
    following = trained(engines, 2)
    for author, published, round_ in (("c", second, 1), ("a", first, 0), ("a", second, 1)):
        assert late(engines["b"], author, published[author], round_) == calls.Done()
    mixed(engines, following, 2)
    assert one_anchor(engines)


def test_messages_that_are_too_late_repeated_or_of_unknown_authors_change_nothing(engines):
    published = trained(engines)
    mixed(engines, published, missed={("b", "a")})
    refused_as("state", late(engines["b"], "c", published["c"]), "nothing")
    refused_as("state", late(engines["b"], "z", published["a"]), "nothing")
    refused_as("state", late(engines["b"], "a", published["a"], 7), "nothing")
    harmed = changed(published["a"], published["a"].payload[:-1])
    refused_as("peer", late(engines["b"], "a", harmed), "bad_support")
    refused_as("peer", late(engines["b"], "a", msgspec.structs.replace(published["a"], digest=bytes(32))), "wrong_digest")
    for round_ in range(1, 1 + DEPTH):
        mixed(engines, trained(engines, round_), round_)
    refused_as("state", late(engines["b"], "a", published["a"]), "nothing")
    assert not one_anchor(engines)


def test_after_taking_over_a_model_messages_of_earlier_rounds_are_ignored(engines):
    published = trained(engines)
    mixed(engines, published, missed={("b", "a")})
    engines["b"].trainer.install(x_of(engines["a"]), 1)
    refused_as("state", late(engines["b"], "a", published["a"]), "nothing")
    mixed(engines, trained(engines, 1), 1)
    assert one_anchor(engines)


def peers_needed(replies):
    """Return by node the peers whose outer parameters it needs, if these are all the same."""
    return {name: peers for name, reply in replies.items() if reply.diverged for _, peers in reply.diverged.outer}


def test_a_single_diverged_node_is_reported_and_the_others_are_not(engines):
    """Once the round in which it diverged no longer changes."""
    mixed(engines, trained(engines), missed={("b", "a")})
    assert peers_needed(closed(engines, 1)) == {"b": ("a", "c", "d")}


def test_with_two_equal_groups_one_is_reported_as_diverged(engines):
    mixed(engines, trained(engines), missed={("b", "a"), ("c", "a")})
    assert torch.equal(x_of(engines["b"]), x_of(engines["c"]))
    replies = closed(engines, 1)
    assert {name for name, reply in replies.items() if reply.diverged} in ({"b", "c"}, {"a", "d"})


def test_the_most_common_outer_parameters_count_without_an_absolute_majority(engines):
    """Otherwise several nodes that each missed a message would stay diverged for ever."""
    mixed(engines, trained(engines), missed={("b", "a"), ("c", "d")})
    assert peers_needed(closed(engines, 1)) == {"b": ("a", "d"), "c": ("a", "d")}


def test_a_single_vote_is_no_majority():
    """Two members with different outer parameters: neither is a majority."""
    engines = {name: opened(AGREED, shard, name) for shard, name in enumerate("ab")}
    mixed(engines, trained(engines), missed={("b", "a")})
    assert not any(reply.diverged for reply in closed(engines, 1).values())


def fetched(engines, name, diverged, served=None):
    """Give a node what it needs, from the first of those who have it, and have it replace its own."""
    for outer, peers in diverged.outer:
        if served is None or peers[0] in served:
            held = done(engines[peers[0]], calls.SnapshotOuter(outer))
            state = done(engines[peers[0]], calls.ReadChunk(held.snapshot, 0, held.size)).data
            done(engines[name], calls.ConsiderOuter(peers[0], outer, state))
    return engines[name].handle(calls.ReplaceOuter())


def test_a_node_replaces_outer_parameters_of_a_past_round_and_keeps_what_was_added_since(engines):
    mixed(engines, trained(engines), missed={("b", "a")})
    replies = closed(engines, 1)
    assert not one_anchor(engines)
    before = engines["b"].replica.state.owed.clone()
    assert fetched(engines, "b", replies["b"].diverged) == calls.Done()
    assert torch.equal(engines["b"].replica.state.owed, before)
    for round_ in range(2 + DEPTH, 6 + DEPTH):
        assert not any(reply.diverged for reply in mixed(engines, trained(engines, round_), round_).values())
        assert one_anchor(engines)


@pytest.mark.parametrize("rounds", [(0, 0, 0, 0), (0, 1, 3, 2)])
def test_nodes_that_all_differ_end_with_equal_bits_also_if_they_replace_theirs_in_different_rounds(engines, rounds):
    mixed(engines, trained(engines), missed={("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")})
    round_, replies = DEPTH + 1, closed(engines, 1)
    assert [len(reply.diverged.outer) for reply in replies.values()] == [3] * 4
    median = torch.stack([x_of(engine) for engine in engines.values()]).sort(0).values[1]
    assert all(not torch.equal(x_of(engine), median) for engine in engines.values())
    for later in range(4):
        for name, at in zip("abcd", rounds, strict=True):
            if at == later and replies[name].diverged:
                assert fetched(engines, name, replies[name].diverged) == calls.Done()
        round_ += 1
        replies = mixed(engines, trained(engines, round_), round_)
    assert one_anchor(engines)


def test_outer_parameters_that_are_not_those_of_the_digest_are_their_senders_fault(engines):
    mixed(engines, trained(engines), missed={("b", "a")})
    needed = closed(engines, 1)["b"].diverged
    ((outer, _),) = needed.outer
    held = done(engines["a"], calls.Snapshot())
    other = done(engines["a"], calls.ReadChunk(held.snapshot, 0, held.size)).data
    refused_as("peer", engines["b"].handle(calls.ConsiderOuter("a", outer, other)), "state_of_another_model")
    refused_as("peer", engines["b"].handle(calls.ConsiderOuter("a", outer, other[:-1])), "state_damaged")
    refused_as("state", engines["b"].handle(calls.ConsiderOuter("a", bytes(range(8)), other)), "not wanted")
    refused_as("state", engines["b"].handle(calls.ReplaceOuter()), "of 0 members")
    refused_as("state", engines["a"].handle(calls.SnapshotOuter(bytes(range(8)))), "not stored")


def test_too_few_outer_parameters_replace_nothing(engines):
    mixed(engines, trained(engines), missed={("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")})
    needed = closed(engines, 1)["a"].diverged
    assert needed.voices == 2
    refused_as("state", fetched(engines, "a", needed, served="b"), "of 2 members")
    refused_as("state", engines["a"].handle(calls.ReplaceOuter()), "of 0 members")


def test_outer_parameters_are_given_only_while_members_differ(engines):
    mixed(engines, trained(engines), missed={("b", "a")})
    replies = closed(engines, 1)
    given = engines["a"].replica.given
    assert given
    fetched(engines, "b", replies["b"].diverged)
    mixed(engines, trained(engines, DEPTH + 2), DEPTH + 2)
    assert not given


def test_a_node_that_skipped_rounds_reports_nothing_until_it_knows(engines):
    """Its outer parameters lack these rounds' messages; what it would report is of another round than others'."""
    for round_ in range(3):
        mixed(engines, trained(engines, round_), round_)
    others = {name: engine for name, engine in engines.items() if name != "a"}
    for round_ in (3, 4):
        mixed(others, trained(others, round_), round_)
    for round_ in range(5, 5 + DEPTH):
        published = trained(engines, round_)
        assert published["a"].payload[:ANCHOR_BYTES] == bytes(ANCHOR_BYTES)
        assert not any(reply.diverged for reply in mixed(engines, published, round_).values())
    replies = mixed(engines, trained(engines, 5 + DEPTH), 5 + DEPTH)
    assert peers_needed(replies) == {"a": ("b", "c", "d")}
    fetched(engines, "a", replies["a"].diverged)
    mixed(engines, trained(engines, 6 + DEPTH), 6 + DEPTH)
    assert one_anchor(engines)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda payload: payload[:-1], "bad_support"),
        (lambda payload: payload[:ANCHOR_BYTES], "bad_length"),
        (lambda payload: b"", "bad_length"),
        (lambda payload: payload[: ANCHOR_BYTES + 1] + b"\x01" + payload[ANCHOR_BYTES + 2 :], "bad_support"),
        (lambda payload: payload[: ANCHOR_BYTES + 2] + b"\x05" + payload[ANCHOR_BYTES + 3 :], "unknown_codec"),
        (lambda payload: payload[: ANCHOR_BYTES + 3] + b"\xff" + payload[ANCHOR_BYTES + 4 :], "wrong_dim"),
    ],
)
def test_an_invalid_message_is_the_peers_fault_and_changes_nothing(engines, harm, reason):
    published = trained(engines)
    refused_as("peer", receive(engines["a"], "b", changed(published["b"], harm(published["b"].payload))), reason)
    refused_as("peer", receive(engines["a"], "b", msgspec.structs.replace(published["b"], digest=bytes(32))), "wrong_digest")
    mixed(engines, published)
    assert torch.equal(x_of(engines["a"]), x_of(engines["b"]))


def test_late_joiners_and_checkpoints_get_the_outer_parameters_not_an_intermediate_model(engines, tmp_path):
    file = tmp_path / "checkpoint"
    engines["a"] = opened(AGREED, 0, "a", file)
    mixed(engines, trained(engines))
    anchor = x_of(engines["a"]).clone()
    done(engines["a"], calls.Train(1, 3))
    assert not torch.equal(engines["a"].replica.x, anchor)
    held = done(engines["a"], calls.Snapshot())
    state = done(engines["a"], calls.ReadChunk(held.snapshot, 0, held.size)).data
    assert torch.equal(tensor_file.unpack(state)[0]["x"], anchor)
    done(engines["a"], calls.Save(""))
    assert torch.equal(x_of(opened(AGREED, 0, "a", file)), anchor)


def test_evaluation_and_export_use_the_outer_parameters_and_training_continues(engines, tmp_path):
    mixed(engines, trained(engines))
    engine, file = engines["a"], tmp_path / "export"
    anchor, x = x_of(engine).clone(), engine.replica.x.clone()
    done(engine, calls.Save(str(file)))
    exported = safetensors.torch.load_file(file)
    assert torch.equal(torch.cat([exported[name].reshape(-1) for name in engine.replica.layout.names]), anchor)
    value = done(engine, calls.Evaluate()).value
    assert torch.equal(engine.replica.x, x)
    assert not torch.equal(x, anchor)
    engine.replica.x.copy_(anchor)
    assert done(engine, calls.Evaluate()).value == value


def test_a_checkpoint_stores_the_unsent_residual(engines, tmp_path):
    file = tmp_path / "checkpoint"
    engines["a"] = opened(AGREED, 0, "a", file)
    mixed(engines, trained(engines))
    kept = engines["a"].replica
    done(engines["a"], calls.Save(""))
    engine = opened(AGREED, 0, "a", file)
    again = engine.replica
    assert kept.state.owed.any()
    assert torch.equal(again.state.owed, kept.state.owed)
    assert torch.equal(again.settled, kept.settled)
    for restore in (lambda: None, engine.trainer.guard.restore):  # imitates a step that must not count
        restore()
        assert torch.equal(again.x, kept.x)


def test_an_old_checkpoint_without_a_residual_loads_with_zeros(engines, tmp_path):
    file = tmp_path / "checkpoint"
    engines["a"] = opened(AGREED, 0, "a", file)
    mixed(engines, trained(engines))
    engines["a"].replica.memory.histories = lambda _state: {}
    done(engines["a"], calls.Save(""))
    again = opened(AGREED, 0, "a", file).replica
    assert not again.state.owed.any()
    assert torch.equal(again.x, x_of(engines["a"]))


def test_installing_a_model_clears_the_residual(engines):
    mixed(engines, trained(engines))
    engines["a"].trainer.install(x_of(engines["b"]), 1)
    assert not engines["a"].replica.state.owed.any()
    assert torch.equal(engines["a"].replica.x, x_of(engines["b"]))
    for round_ in range(1, 4):  # its newest outer parameters may still change, unlike those of the closed round
        mixed(engines, trained(engines, round_), round_)
    assert not any(reply.diverged for reply in mixed(engines, trained(engines, 4), 4).values())


def test_without_a_peer_a_node_goes_on_alone():
    engine = opened(AGREED, 0, "a")
    before = x_of(engine)
    done(engine, calls.Train(0, 3))
    done(engine, calls.Publish(0))
    done(engine, calls.Mix(0))
    assert not torch.equal(x_of(engine), before)


def test_noise_on_messages_that_add_up_is_refused():
    asked = msgspec.structs.replace(open_request(AGREED), privacy=PrivacySection(exchange_noise=0.1))
    refused_as("config", run(Worker(clock=lambda: 0.0), asked), "privacy.exchange_noise")
