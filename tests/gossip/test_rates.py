"""Token buckets by key: each key has its own, and the most recently used ones are stored."""

from starling.gossip.limits import Rates


def test_each_key_has_a_bucket_of_its_own():
    rates = Rates(1.0, 2.0, most=8)
    assert [rates.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert rates.take("b", 0.0)
    assert rates.take("a", 1.0), "one token came back"


def test_only_the_most_recently_used_buckets_are_stored():
    rates = Rates(1.0, 1.0, most=2)
    assert rates.take("a", 0.0)
    assert rates.take("b", 0.0)
    assert not rates.take("a", 0.0)
    assert rates.take("c", 0.0)
    assert len(rates) == 2
    assert not rates.take("a", 0.0), "it was used after b"
    assert rates.take("b", 0.0), "it was forgotten"
