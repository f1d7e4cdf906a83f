"""The engine's part of pulled exchanges: what is published, which messages are refused, and what Mix computes."""

import msgspec
import pytest
import torch

from starling.gossip.exchange.attestation import digest
from starling.node.config.schema import CompressSection, OptimizerSection
from starling.node.rpc import calls
from tests.harness.engines import done, opened, run, x_of
from tests.harness.pulling import gathering, receive, trained

HALF = 11  # bytes of a payload's header: version, kind, quantizer, dimension
KIND, QUANTIZER, DIM = 1, 2, 3


def published(payload):
    return calls.Published(payload, digest(payload))


def changed(it, at, value):
    return published(it.payload[:at] + bytes([value]) + it.payload[at + 1 :])


def test_mix_combines_the_own_vector_and_those_received_by_the_rule():
    """The own vector is exact, the others as decoded; the weight of a peer that did not answer goes to the node itself."""
    engines, vectors = trained()
    a, mine = engines["a"], x_of(engines["a"])
    for peer in "cb":
        assert receive(a, peer, vectors[peer]) == calls.Done()
    theirs = [x_of(engines[peer]).half().float() for peer in "bc"]
    done(a, calls.Mix(0, ("d", "c", "b")))
    assert torch.allclose(x_of(a), torch.stack([mine, mine, *theirs]).mean(0), atol=1e-6)


def test_a_published_vector_has_equal_bytes_within_a_round_and_others_in_the_next():
    engines, vectors = trained()
    for name, engine in engines.items():
        assert done(engine, calls.Publish(0)) == vectors[name]
        assert vectors[name].digest == digest(vectors[name].payload)
    assert len({it.payload for it in vectors.values()}) == len(vectors)


def test_without_answers_the_own_vector_stays_and_no_state_carries_over():
    engines, vectors = trained()
    a, mine = engines["a"], x_of(engines["a"])
    done(a, calls.Mix(0, ("b", "c")))
    assert torch.equal(x_of(a), mine)
    done(a, calls.Train(1, 1))
    receive(a, "b", vectors["b"])
    done(a, calls.Mix(1, ()))  # received without a request
    done(a, calls.Train(2, 1))
    mine = x_of(a)
    done(a, calls.Mix(2, ("b",)))
    assert torch.equal(x_of(a), mine)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda it: calls.Published(it.payload, bytes(32)), "wrong_digest"),
        (lambda it: published(b""), "not_whole"),
        (lambda it: changed(it, KIND, 2), "not_whole"),
        (lambda it: changed(it, KIND, 3), "not_whole"),
        (lambda it: published(it.payload[:-1]), "bad_length"),
        (lambda it: published(it.payload + b"\0"), "bad_length"),
        (lambda it: changed(it, QUANTIZER, 1), "unknown_codec"),
        (lambda it: changed(it, DIM, 7), "wrong_dim"),
        (lambda it: published(it.payload[:HALF] + b"\x00\x7e" * ((len(it.payload) - HALF) // 2)), "not_finite"),
    ],
)
def test_invalid_vectors_are_refused_and_change_nothing(spoil, reason):
    engines, vectors = trained("ab")
    a = engines["a"]
    assert receive(a, "b", spoil(vectors["b"])) == calls.Refused("peer", reason)
    mine = x_of(a)
    done(a, calls.Mix(0, ("b",)))
    assert torch.equal(x_of(a), mine)


def test_numbers_whose_squares_overflow_are_refused():
    agreed = msgspec.structs.replace(gathering(), compress=CompressSection(select="full", response="identity"))
    a = opened(agreed, 0, "a")
    done(a, calls.Train(0, 1))
    it = done(a, calls.Publish(0))
    for number, reply in ((1e30, calls.Refused("peer", "too_large")), (1e11, calls.Done())):
        numbers = torch.full(((len(it.payload) - HALF) // 4,), number).numpy().tobytes()
        assert receive(a, "b", published(it.payload[:HALF] + numbers)) == reply


def test_calls_out_of_order_publish_receive_and_store_nothing():
    """Between Mix and the end of the next Train, and for messages of a revoked peer."""
    engines, vectors = trained("ab")
    a, mine = engines["a"], x_of(engines["a"])
    receive(a, "b", vectors["b"])
    done(a, calls.Revoke("b"))
    done(a, calls.Mix(0, ("b",)))
    assert torch.equal(x_of(a), mine)
    for call in (calls.Publish(1), calls.VerifyUpdate("b", vectors["b"].digest, vectors["b"].payload)):
        assert a.handle(call).kind == "state"


def test_an_own_vector_that_cannot_be_sent_is_no_peer_s_fault():
    agreed = msgspec.structs.replace(gathering(), optimizer=msgspec.structs.replace(OptimizerSection(momentum=0.0), lr=1e16))
    a = opened(agreed, 0, "a")
    run(a, calls.Train(0, 1))
    assert a.handle(calls.Publish(0)).kind == "state"


@pytest.mark.parametrize("rule", ["cs_plus", "cs_nnm", "median", "ubar", "krum", "sac"])
def test_one_vector_of_large_numbers_does_not_break_a_robust_rule(rule):
    """The minimum for a robust rule on a node: it stays near the honest vectors, finite, and can continue."""
    engines, vectors = trained(rule=rule)
    a, mine = engines["a"], x_of(engines["a"])
    count = (len(vectors["b"].payload) - HALF) // 2
    huge = torch.full((count,), 60000.0, dtype=torch.float16).numpy().tobytes()
    receive(a, "b", published(vectors["b"].payload[:HALF] + huge))
    for peer in "cd":
        receive(a, peer, vectors[peer])
    done(a, calls.Mix(0, ("b", "c", "d")))
    assert float((x_of(a) - mine).norm()) < 10.0
    assert not torch.equal(x_of(a), mine) or rule == "krum"
    assert done(a, calls.Train(1, 2)).undone == 0


def test_mix_names_the_peers_that_the_rule_clipped():
    for rule, held in (("cs_plus", ("d",)), ("cs_nnm", ("d",)), ("median", None)):
        engines, vectors = trained(rule=rule)
        a = engines["a"]
        count = (len(vectors["d"].payload) - HALF) // 2
        far = torch.full((count,), 600.0, dtype=torch.float16).numpy().tobytes()
        receive(a, "d", published(vectors["d"].payload[:HALF] + far))
        receive(a, "c", vectors["c"])
        assert done(a, calls.Mix(0, ("d", "b", "c"))).clipped_or_excluded == held


def known(engine):
    return {name.removeprefix("known."): it for name, it in engine.trainer.tensors().items() if name.startswith("known.")}


def test_rule_state_per_peer_survives_a_restart_and_ends_with_a_ban(tmp_path):
    """A clone's history is not lost in a restart; a peer that is admitted again begins anew."""
    _, vectors = trained()
    agreed = gathering("foolsgold")
    a = opened(agreed, 0, "a", tmp_path / "a.safetensors")
    done(a, calls.Train(0, 1))
    for peer in "bd":
        receive(a, peer, vectors[peer])
    done(a, calls.Mix(0, ("d", "c", "b")))
    learned = known(a)
    assert learned.keys() == {"b", "d"}
    assert all(history.any() for history in learned.values())
    assert not torch.equal(learned["b"], learned["d"])
    done(a, calls.Save())

    again = opened(agreed, 0, "a", tmp_path / "a.safetensors")
    assert known(again).keys() == learned.keys()
    assert all(torch.equal(known(again)[peer], learned[peer]) for peer in "bd")
    done(again, calls.Revoke("d"))
    assert known(again).keys() == {"b"}
    done(again, calls.Train(1, 1))
    receive(again, "c", vectors["c"])
    done(again, calls.Mix(1, ("c",)))
    assert known(again).keys() == {"b", "c"}
    assert torch.equal(known(again)["b"], learned["b"])
