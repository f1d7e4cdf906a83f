"""Text from a person: settings, invites, addresses. Errors are a ConfigError in one line."""

import re
from collections.abc import Iterator

import base58
import msgpack
import msgspec
import tomli_w

from starling.gossip.errors import ConfigError
from starling.node.admission import chain as chains
from starling.node.admission import invite as invites
from starling.node.admission.invite import Invite
from starling.node.config import toml
from starling.node.config.parts import Section, convert
from starling.node.config.schema import Manifest, NodeConfig, TaskSection
from starling.node.identity import Identity
from starling.node.net.libp2p import addresses
from tests.fuzz.plain import MSGPACK_LURES, edited
from tests.fuzz.target import Choices, Target, one_line, prefixed

PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
SECTIONS: tuple[type[Section], ...] = (Manifest, NodeConfig)
EXAMPLES: tuple[Section, ...] = (
    Manifest(task=TaskSection(kind="mine:Task", nodes=4, dtype="float64", condition=2.0, shuffled=True)),
    NodeConfig(),
)


def _toml(data: bytes) -> bool:
    """Interpret the input. First byte: the settings file; from 128 on, the rest gives changes of a valid one, key by key."""
    setting, text = (data[0] if data else 0), data[1:].decode("utf-8", "surrogateescape")
    kind = SECTIONS[setting % 2]
    if setting >= 128:
        choices = Choices(data[1:])
        plain = msgspec.to_builtins(EXAMPLES[setting % 2])
        for _ in range(choices.below(4)):
            plain = edited(plain, choices, binary=False)
        try:
            text = tomli_w.dumps(_without_none(plain))
        except (TypeError, ValueError, AttributeError):
            return False
    try:
        config = convert(toml.parse(text), kind)
    except ConfigError as error:
        one_line(error)
        return False
    assert convert(toml.parse(toml.to_toml(config)), kind) == config, "what was read can be written"
    assert convert(toml.parse(toml.render(config)), kind) == config, "what is shown can be read"
    return True


def _without_none(plain: object) -> object:
    match plain:
        case dict():
            return {key: _without_none(value) for key, value in plain.items() if value is not None}
        case list():
            return [_without_none(value) for value in plain if value is not None]
        case _:
            return plain


def _tomls() -> Iterator[bytes]:
    for number, example in enumerate(EXAMPLES):
        yield bytes([number]) + toml.to_toml(example).encode()
        yield bytes([number, 0x0A])
        yield bytes([128 + number, 0])
    yield b"\0seed = 0xff\n" + b'task.kind = "quadratic"\n[optimizer]\n"lr" = 1.5\n'


def _toml_lures() -> list[bytes]:
    values = (b"9" * 4400, b"0x" + b"f" * 4000, b"-" + b"9" * 30, b"1e999", b"nan", b"1979-05-27T07:32:00Z", b"[" * 2000, b"{a=" * 900)
    lines = (b"%s = %s\n" % (key, value) for key in (b"seed", b"task.n", b"name") for value in values)
    return prefixed(
        b"\0",
        *lines,
        b"a." * 2200 + b"a = 1",
        b'"' + b"k" * 4000 + b'" = 1',
        b"[[task]]\n[task.params]\n",
        b"[task]\nkind = 'a'\n[task]\n",
        b"seed = \xff\n",
        b"\xef\xbb\xbfseed = 1\n",
    )


_TOMLLIB_BYTES = 32 << 20  # 20 MB for two thousand tables in each other
TOML = Target(_toml, _tomls, _toml_lures, most_bytes=4500, spare_bytes=_TOMLLIB_BYTES, reach=80)


def _set(data: bytes) -> bool:
    """First byte: whose settings. Each line is a `--set`; each is read as a rate, too."""
    config = EXAMPLES[data[0] % 2 if data else 0]
    given = data[1:].decode("utf-8", "surrogateescape").split("\n")
    for text in given:
        try:
            assert 0 <= toml.parse_rate(text) < 2**62
        except ConfigError as error:
            one_line(error)
    try:
        changed = toml.apply_set(config, given)
    except ConfigError as error:
        one_line(error)
        return False
    assert convert(toml.parse(toml.to_toml(changed)), type(config)) == changed
    return True


def _sets() -> Iterator[bytes]:
    for number, text in (
        (0, "pace.rounds=50"),
        (0, "mix=dsgd"),
        (0, "task.model=cnn"),
        (0, "name=1\nseed=7"),
        (0, "name='a = b'\noptimizer.lr=1e-3"),
        (0, "overlay = ring"),
        (1, "data=/tmp/x"),
    ):
        yield bytes([number]) + text.encode()


def _set_lures() -> list[bytes]:
    texts = (
        "task.a.b=1",
        "task.a.b.c=1",
        "task.params=1",
        "task.model.x=1",
        "seed.x=1",
        "a=1",
        "=",
        "a",
        ".=1",
        "seed=" + "9" * 4400,
        "seed=0x" + "f" * 4000,
        "task.n=" + "[" * 2000,
        "name=\r\n",
        "name='''\n'''",
        "pace=",
        "pace.=1",
        "10mbit",
        "1e400b",
        "9" * 400 + "g",
        "\u0663k",
        "0.0000001k",
        "none",
    )
    return [setting + text.encode() for text in texts for setting in (b"\0", b"\1")]


SET = Target(_set, _sets, _set_lures, most_bytes=4500, spare_bytes=4 << 20, reach=85)


def _invite(data: bytes) -> bool:
    """First byte below 128: the text of an invite. Else what is packed in one whose checksum fits, from 192 on with an invitation."""
    setting, rest = (data[0] if data else 0), data[1:]
    text = rest.decode("utf-8", "surrogateescape")
    if setting >= 128:
        rest = rest[:1000]  # base58 takes time with the square of the length
        prefix = invites.INVITED if setting >= 192 else invites.PREFIX
        text = prefix + base58.b58encode(rest + invites.checksum_of(prefix, rest)).decode()
    try:
        found = invites.decode(text)
    except ConfigError as error:
        one_line(error)
        return False
    assert isinstance(found.swarm, str)
    assert all(isinstance(address, str) for address in found.bootstrap)
    assert 1 <= len(found.bootstrap) <= 8
    assert invites.decode(invites.encode(found)) == found
    return True


def _invites() -> Iterator[bytes]:
    one, eight = f"/ip4/203.0.113.7/tcp/4001/p2p/{PEER}", (f"/dns/a{i}.example/tcp/{i}/p2p/{PEER}" for i in range(8))
    for bootstrap in ((one,), tuple(eight)):
        invite = Invite("szqrpi3amiarlozqhdswsbdg7m5ou3swn", bootstrap)
        text = invites.encode(invite)
        yield b"\0" + text.encode()
        yield b"\x80" + msgpack.packb([invite.swarm, list(bootstrap)])
    inviter = Identity.from_seed(b"creator of swarms to be attacked")
    terms = chains.Terms(invite.swarm, inviter.peer_id, 2, 3)
    chain = chains.invite(inviter, (), terms, invitee=PEER, number=0, not_after_ms=2**41)
    yield b"\xff" + msgpack.packb([invite.swarm, list(bootstrap)[:1], chains.encode(chain), bytes(32)])


def _invite_lures() -> list[bytes]:
    address = f"/ip4/203.0.113.7/tcp/4001/p2p/{PEER}"
    fields = (
        [b"swarm", [address]],
        [["s"], [address]],
        [{"s": 1}, [address]],
        ["s", {address: 1}],
        ["s", address],
        ["s", [address.encode()]],
        ["s", [7]],
        [7, [address]],
        ["s", None],
        ["s", [address], 1],
        {"a": 1, "b": 2},
        "ab",
        None,
        [" ", [address]],
        ["a\nb", [address]],
    )
    texts = (
        "starling2:abc",
        "starling3:abc",
        "starling1:",
        "starling1:0OIl",
        "starling\u0661:a",
        "starling1:é",
        "\u2028",
        "starling1:" + "1" * 3000,
        "x" * 50,
    )
    packed = prefixed(b"\x80", *MSGPACK_LURES, *map(msgpack.packb, fields))
    return packed + prefixed(b"\0", *(text.encode() for text in texts))


INVITE = Target(_invite, _invites, _invite_lures, spare_bytes=4 << 20, reach=24)


def _address(data: bytes) -> bool:
    text = data.decode("utf-8", "surrogateescape")
    try:
        block = addresses.block(text)
    except ValueError:
        pass
    else:
        assert addresses.block(block.partition("/")[0]) == block, "all of a block are in it"
    try:
        found = addresses.parse(text)
    except ValueError:
        return False
    assert addresses.parse(str(found)) == found, "one form, which is its own"
    assert found.protocol in {"ip4", "ip6", "dns", "dns4", "dns6"}
    assert 0 <= found.port <= 65535
    assert found.host
    assert not re.search(r"[\s/]", found.host)
    if found.protocol.startswith("ip"):
        addresses.block(found.host)
    return True


def _addresses() -> Iterator[bytes]:
    hosts = "ip4/192.0.2.7 ip6/2001:db8::1 ip6/::ffff:1.2.3.4 ip6/fe80::1%eth0 dns/example.org dns4/a dns6/é.example"
    for host in hosts.split():
        yield f"/{host}/tcp/4001".encode()
        yield f"/{host}/tcp/0/p2p/{PEER}".encode()
        yield f"/{host}/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{PEER}".encode()


def _address_lures() -> list[bytes]:
    texts = (
        "/ip4/1.2.3.4/tcp/65536",
        "/ip4/01.2.3.4/tcp/1",
        "/ip4/1.2.3/tcp/1",
        "/ip4/\u0661.2.3.4/tcp/1",
        "/ip6/::%/tcp/1",
        "/ip6/::1%a%b/tcp/1",
        "/ip4/1.2.3.4/tcp/\u0663",
        "/dns/" + "a" * 254 + "/tcp/1",
        "/dns/\0/tcp/1",
        "/dns/\ud800/tcp/1",
        "/ip4/1.2.3.4/udp/1",
        "1.2.3.4",
        "::1",
        "/ip4/1.2.3.4/tcp/1/p2p/" + "1" * 129,
        "/ip4/1.2.3.4/tcp/1\n",
        "::ffff:1.2.3.4",
        "fe80::1%eth0",
        "2001:db8::1",
        "/ip4/1.2.3.4/tcp/1/p2p-circuit",
        f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit/p2p-circuit",
    )
    return [text.encode("utf-8", "surrogatepass") for text in texts]


ADDRESS = Target(_address, _addresses, _address_lures, most_bytes=512, reach=20)
