"""On how many threads an engine computes, and that it changes no byte of a payload."""

from types import SimpleNamespace

import pytest
import torch

from starling.gossip.rng import generator
from starling.kernels import codec
from starling.kernels.schema import CODECS
from starling.node.engine.threads import one_thread
from starling.node.rpc import calls
from tests.harness.engines import manifest, opened


@pytest.fixture(autouse=True)
def restored():
    """The number of threads is the process's, and other tests have theirs."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CODECS)
def test_a_payload_and_what_is_read_of_it_are_the_same_bytes_on_any_number_of_threads(name):
    """Signatures and digests are of bytes. Long enough for torch to use its threads."""
    x, payloads, read = torch.randn(100_003, generator=generator(5)), set(), set()
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        coder = codec.coder(name, x.numel(), "cpu")
        payloads.add(coder.encode(x, 1))
        read.add(coder.decode(min(payloads))[1].numpy().tobytes())
    assert len(payloads) == len(read) == 1


def test_one_thread_is_for_the_time_being_also_where_it_fails():
    torch.set_num_threads(3)
    with pytest.raises(ZeroDivisionError), one_thread():
        torch.set_num_threads(1 // (torch.get_num_threads() - 1))
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("method", ["offer", "answer", "apply", "commit", "publish", "verify"])
def test_payloads_are_coded_on_one_thread(method, monkeypatch):
    """Beside a busy process two are forty times slower; local steps keep theirs."""
    session = opened(manifest()).session
    session.train(calls.Train(0, 0))  # there is a vector to exchange
    owner = session.pulls if method in ("publish", "verify") else session.exchanges
    seen = []
    monkeypatch.setattr(owner, method, lambda *_, **__: seen.append(torch.get_num_threads()))
    monkeypatch.setattr(session, "take", lambda _: None)
    torch.set_num_threads(2)
    getattr(session, method)(SimpleNamespace(peer="b"))
    assert seen == [1]
    assert torch.get_num_threads() == 2
