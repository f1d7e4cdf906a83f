"""A swarm whose messages would exceed a frame is refused before it is created, with a remedy."""

import pytest
import torch
from msgspec import structs

from starling.gossip.compress import codec
from starling.gossip.compress.catalogue import QUANTIZERS, quantizer
from starling.gossip.compress.support import Full
from starling.gossip.errors import ConfigError
from starling.gossip.wire.schema import MAX_PAYLOAD_BYTES
from starling.node.config import frame_limits, toml
from starling.node.config import manifest as manifests
from starling.node.config.schema import Manifest
from starling.node.engine.compression import selection

GPT = ("task=text", "task.path=x", "task.width=1536", "task.heads=12")


def of(*words):
    return toml.apply_set(Manifest(), list(words))


def gpt(*words, layers=32):
    return of(*GPT, f"task.layers={layers}", *words)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_bits_per_value_equal_the_encoded_size(name):
    """Averaged over many values, with their share of a scale; the table is readable without torch."""
    bits = QUANTIZERS.facts(name).bits
    assert bits == 8 * quantizer(name, torch.float32).size(128_000) / 128_000


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("compress.select=full",), 7),
        (("compress.select=full", "optimizer=adamw"), 13),
        (("compress.select=full", "mix=moments"), 13),
        (("compress.select=mask", "compress.ratio=0.3"), 7),
        (("compress.select=fragment", "compress.parts=2"), 7),
        (("compress.select=top_k", "compress.ratio=0.5"), 7),
        (("compress.select=full", "compress.request=bf16", "compress.response=fp16", "mix=choco", "overlay=ring"), 7),
    ],
)
def test_messages_longer_than_a_frame_are_refused_with_a_remedy(words, parts):
    """907 million numbers. The remedy named is the smallest that is accepted."""
    with pytest.raises(ConfigError, match=rf"compress.select: a message about 907,201,536 .* 268 MB; .*parts={parts}`"):
        manifests.check(gpt(*words))
    cure = gpt(*words).compress.changed(select="fragment", parts=parts)
    manifests.check(structs.replace(gpt(*words), compress=cure))
    if parts > 2:
        assert frame_limits.objection(structs.replace(gpt(*words), compress=cure.changed(parts=parts - 1)), 907_201_536)


def test_a_share_that_fits_and_a_budget_are_accepted():
    for words in (("compress.select=budget",), ("compress.select=mask", "compress.ratio=0.1")):
        manifests.check(gpt(*words))
    manifests.check(gpt("compress.select=full", layers=4))


def test_a_budget_cuts_what_does_not_fit_by_itself():
    request, response = (quantizer(name, torch.float32) for name in ("identity", "fp16"))
    choose = selection(of("compress.select=budget").compress, request, response)
    few, many = (choose(0, dim).ratio for dim in (10**6, 10**9))
    assert few == 1.0
    assert 0.9 * MAX_PAYLOAD_BYTES < 6 * many * 10**9 <= MAX_PAYLOAD_BYTES
    assert codec.size(Full(), request, 10**6) < MAX_PAYLOAD_BYTES


def test_whole_vectors_of_all_kinds_have_no_remedy_but_another_mix():
    with pytest.raises(ConfigError, match=r"mix=gather cannot send less; try a smaller model, or `--set mix.kind=pet`"):
        manifests.check(gpt("mix=gather"))


def test_the_model_of_a_task_of_ones_own_is_known_by_its_fingerprint():
    def own(*lines):
        return structs.replace(of("task=my:Task", "compress.select=full"), task=of("task=my:Task").task.changed(fingerprint=lines))

    tensor = "float32 trained 900000000 weight"
    with pytest.raises(ConfigError, match="a message about 900,000,000 numbers"):
        frame_limits.check(own("metric mae, lower is better", "model 900000000 1 00", tensor))
    frame_limits.check(own("model 900000000 2 00", "float32 frozen 899999999 base", "float32 trained 1 weight"))
    frame_limits.check(own("model 9000 1 00", tensor))


def test_more_parts_than_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"compress\.parts: must be <= 4,810, .* got 65,000; try `--set compress.parts=8`"):
        manifests.check(of("task=digits", "compress.select=fragment", "compress.parts=65000"))


@pytest.mark.parametrize("words", [("mix=sparse_outer", "overlay=complete"), ("mix=push_sum",)])
def test_fragments_are_refused_where_all_peers_must_receive_the_same_or_everything(words):
    with pytest.raises(ConfigError, match=r"compress|feedback"):
        manifests.check(of("compress.select=fragment", *words))
