"""Random choice of peers to pull from: exact hypergeometric tails of how many are Byzantine, and draws with caps. Torch-free.

A node uses only vectors of peers that it drew, so the share of Byzantine members among them is that of a random sample.

Shapes: n members, f of them Byzantine, s peers pulled in a round, b of these that a rule tolerates.

Source: pull-based epidemic robust learning, RPEL, arXiv:2506.05579 (2025), with the exact tail in place of its bound.
"""

import hashlib
import ipaddress
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

_WORD = 8  # bytes of a draw, so that the remainder is almost uniform
_V4_BITS, _V6_BITS = 24, 48  # address block that one network customer usually gets
_NAMED = "named"  # host names are free and may resolve to anything, so all of them count as one prefix
_RELAYED, _CIRCUIT = ("relayed", "/p2p-circuit")  # a relay address does not show its peer's prefix, so all of them count as one prefix

Source = Callable[[int], int]  # bound -> a uniform integer in [0, bound), independent of earlier ones


def overflow(n: int, f: int, s: int, b: int) -> float:
    """P[more than b of s are Byzantine], for s of the n − 1 others drawn uniformly without replacement; f of n members >= 2 are.

    Exact: integer arithmetic up to the last division. Raises ValueError: f or s is not in [0, n − 1], or b < 0.
    """
    _check(n, f, s)
    if b < 0:
        raise ValueError(f"b must be >= 0, got {b}")
    return sum(ways for x, ways in _ways(n, f, s) if x > b) / math.comb(n - 1, s)


def b_hat(n: int, f: int, s: int, nodes: int, rounds: int, epsilon: float) -> int:
    """Return the smallest b such that with probability >= 1 − epsilon no node ever draws more than b Byzantine peers; n, f, s as in
    `overflow`.

    `nodes` >= 1 honest ones draw in each of rounds >= 1; epsilon in (0, 1). Raises ValueError: out of these bounds.
    """
    _check(n, f, s)
    if nodes < 1 or rounds < 1:
        raise ValueError(f"nodes and rounds must be >= 1, got {nodes} and {rounds}")
    if not 0.0 < epsilon < 1.0:
        raise ValueError(f"epsilon must be in (0, 1), got {epsilon}")
    # allowed probability of one draw: (1 − allowed)^(nodes·rounds) = 1 − epsilon
    allowed = -math.expm1(math.log1p(-epsilon) / (nodes * rounds))
    whole, tail = math.comb(n - 1, s), 0
    for b, ways in _ways(n, f, s):
        tail += ways
        if tail / whole > allowed:
            return b
    return 0


def least_s(n: int, f: int, nodes: int, rounds: int, epsilon: float) -> int:
    """Return the smallest odd s with 2·b_hat < s: with probability >= 1 − epsilon no draw of the run has a Byzantine half. Arguments as of
    `b_hat`.

    Raises ValueError: there is no such s, or an argument is out of bounds.
    """
    for s in range(1, n, 2):
        if 2 * b_hat(n, f, s, nodes, rounds, epsilon) < s:
            return s
    raise ValueError(f"f must be smaller: no number of peers keeps {f} bad of {n} members in the minority")


def draw(
    candidates: Sequence[str], k: int, prefixes: Mapping[str, Collection[str]], per_prefix: int, source: int | Source
) -> tuple[str, ...]:
    """K >= 0 distinct candidates, uniformly at random, with at most `per_prefix` of one prefix, 0 for any; fewer if the caps allow no more.

    In the order of a uniform shuffle each candidate is taken unless one of its prefixes is full, which favours peers in small prefixes;
    without caps all sets of k are equally likely. Candidates are in a reproducible order, repeated ones count once; `prefixes` are as
    `labels` gives them, a missing peer has none; `source` is a seed (equal arguments give an equal draw), or of integers.

    Raises ValueError: k or per_prefix is negative.
    """
    if k < 0 or per_prefix < 0:
        raise ValueError(f"k and per_prefix must be >= 0, got {k} and {per_prefix}")
    taken: list[str] = []
    per: Counter[str] = Counter()
    for peer in _shuffled(candidates, _numbers(source) if isinstance(source, int) else source):
        if len(taken) == k:
            break
        own = prefixes.get(peer, ()) if per_prefix else ()
        if all(per[prefix] < per_prefix for prefix in own):
            taken.append(peer)
            per.update(own)
    return tuple(taken)


def labels(addresses: Iterable[str], operator: str = "") -> frozenset[str]:
    """Return the prefixes of a peer: those of all its addresses, multiaddrs, and the label that its operator gives to all of its nodes, ""
    for none.

    For a connected peer pass the observed address, as the addresses in its record are its own claim.
    """
    found = {prefix for prefix in map(prefix_of, addresses) if prefix is not None}
    return frozenset(found | ({f"operator {operator}"} if operator else set()))


def prefix_of(address: str) -> str | None:
    """Return the IPv4 /24 or IPv6 /48 of a multiaddr such as "/ip4/1.2.3.4/tcp/4001"; "named" for host names and other protocols,
    "relayed" for addresses at public relays.

    None for malformed and non-public addresses (loopback, private, link-local, shared).
    """
    parts = address.split("/")
    if len(parts) < 3 or parts[0]:
        return None
    protocol, value = parts[1], parts[2]
    if protocol == "ip6zone" and len(parts) >= 5:
        protocol, value = parts[3], parts[4]
    if protocol not in {"ip4", "ip6"}:
        return _NAMED
    try:
        host = ipaddress.ip_address(value)
    except ValueError:
        return None
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    if not host.is_global:
        return None
    if _CIRCUIT in address:
        return _RELAYED
    return str(ipaddress.ip_network((host, _V4_BITS if host.version == 4 else _V6_BITS), strict=False))


def _check(n: int, f: int, s: int) -> None:
    for name, value in (("f", f), ("s", s)):
        if not 0 <= value <= n - 1:
            raise ValueError(f"{name} must be in [0, n − 1] = [0, {n - 1}], got {value}")


def _ways(n: int, f: int, s: int) -> Iterator[tuple[int, int]]:
    """Yield (x, number of samples of s with exactly x Byzantine), from the largest possible x down to 0."""
    good, most = n - 1 - f, min(f, s)
    ways = math.comb(f, most) * math.comb(good, s - most)
    for x in range(most, -1, -1):
        yield x, ways
        ways = ways * x * (good - s + x) // ((f - x + 1) * (s - x + 1))  # without a remainder


def _shuffled(candidates: Sequence[str], source: Source) -> Iterator[str]:
    """Yield the candidates in random order (lazy Fisher–Yates shuffle)."""
    left = list(dict.fromkeys(candidates))
    while left:
        place = source(len(left))
        left[place], left[-1] = left[-1], left[place]
        yield left.pop()


def _numbers(seed: int) -> Source:
    """Return a stream of integers from a seed."""
    return partial(_number, seed.to_bytes(16, "little", signed=True), count())


def _number(seed: bytes, counter: Iterator[int], bound: int) -> int:
    raw = hashlib.blake2b(next(counter).to_bytes(_WORD, "little"), key=seed, digest_size=_WORD).digest()
    return int.from_bytes(raw, "little") % bound
