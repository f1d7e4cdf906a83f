"""A swarm's manifest: signed by its creator, identified by its hash, checked by every node that reads it.

Canonical bytes are the msgpack of all fields, defaults included, keys sorted: one manifest has one byte string, and its hash is the
swarm id. Keys that format 2 did not begin with are left out where they have their defaults: there are swarms from before them. So a node
with an invite can get the manifest from any peer.
"""

import base64
import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgpack
import msgspec

from starling.gossip.compress.catalogue import QUANTIZERS
from starling.gossip.errors import ConfigError, RemoteProtocolError
from starling.gossip.mix.catalogue import MIXERS, MixerFacts
from starling.gossip.overlay.api import Overlay
from starling.gossip.seeds import derive
from starling.node import identity
from starling.node.catalogues import PACES
from starling.node.config import (
    alternating_blocks,
    buffers,
    consent,
    crew,
    frame_limits,
    gradient_point,
    initial_model,
    parts,
    personal,
    presets,
    robustness,
    script,
    weight,
)
from starling.node.config.overlay import inexact, overlay_of
from starling.node.config.schema import CompressSection, Manifest, MixSection
from starling.node.identity import Identity

MAX_BYTES = 64 << 10
_MAX_ITEMS = 256  # most items of a list: memory for them is allocated at once, and lists may be nested a thousand deep
_ID_BYTES = 20
SIGN_DOMAIN = b"starling/manifest/1\0"
_LATER: Mapping[str, object] = MappingProxyType({})
"""Keys added to format 1 later ("mix.kappa", or a whole section), and their defaults, which the canonical bytes omit so that ids stay."""
_SOME = 16  # number of members for which every overlay exists; whether an overlay is static does not depend on it


def to_bytes(manifest: Manifest) -> bytes:
    """Return the canonical bytes: msgpack with sorted keys."""
    plain = msgspec.to_builtins(manifest)
    for key, default in _LATER.items():
        section, _, name = key.rpartition(".")
        table = plain[section] if section else plain
        if name in table and table[name] == default:
            del table[name]
    packed: bytes = msgpack.packb(ordered(plain), use_bin_type=True)
    return packed


def swarm_id(manifest: Manifest) -> str:
    """Return the letter s and 32 letters and digits: BLAKE2b-160 of the canonical bytes, in base32."""
    return hash_of(to_bytes(manifest))


def create(manifest: Manifest, creator: Identity, now_ms: int) -> Manifest:
    """Return the manifest with creator, time (unix) and signature filled in. Raises ConfigError: `check` objects."""
    unsigned = msgspec.structs.replace(manifest, founder=creator.peer_id, founded_ms=now_ms, signature="")
    check(unsigned)
    signature = creator.sign(SIGN_DOMAIN + to_bytes(unsigned)).hex()
    return msgspec.structs.replace(unsigned, signature=signature)


def verify(manifest: Manifest) -> None:
    """Check the creator's signature. Raises ConfigError: not created, or changed since."""
    if not manifest.signature:
        raise ConfigError("signature: is empty, this manifest was not created; try `starling create MANIFEST.toml`")
    unsigned = msgspec.structs.replace(manifest, signature="")
    try:
        signature = bytes.fromhex(manifest.signature)
    except ValueError:
        signature = b""
    if not identity.verify(manifest.founder, signature, SIGN_DOMAIN + to_bytes(unsigned)):
        raise ConfigError(
            "signature: does not fit, the manifest was changed since it was signed; restore it, or create another with `starling create`"
        )


def from_bytes(raw: bytes, swarm: str, peer: str) -> Manifest:
    """Return a manifest received from a peer, which must be that of the requested swarm id.

    Raises RemoteProtocolError: bytes with another hash, or not a signed manifest; ConfigError: the right bytes, but of another version, or
    `check` objects.
    """
    if len(raw) > MAX_BYTES or hash_of(raw) != swarm:
        raise RemoteProtocolError(peer, "manifest_hash")
    try:
        plain = msgpack.unpackb(raw, raw=False, max_array_len=_MAX_ITEMS, max_ext_len=0, object_pairs_hook=_table)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise RemoteProtocolError(peer, "manifest_not_msgpack") from error
    if not isinstance(plain, dict):
        raise RemoteProtocolError(peer, "manifest_not_msgpack")
    try:
        manifest = parts.convert(plain, Manifest)
    except ConfigError as error:
        raise _another_version(str(error)) from error
    if to_bytes(manifest) != raw:
        raise _another_version("its fields are not those known here")
    try:
        verify(manifest)
    except ConfigError as error:
        raise RemoteProtocolError(peer, "manifest_signature") from error
    check(manifest)
    return manifest


def check(manifest: Manifest, *, trusted: bool = False) -> list[str]:
    """Check rules between fields -> warnings, one line each: allowed, but perhaps not meant. Rules of one part are `check` of its class.

    `trusted`: the machine's owner agrees to import what "module:Class" names; else its rules are left to a later check. Raises ConfigError:
    it cannot work.
    """
    optimizer, mix, pace, timing = manifest.optimizer, manifest.mix, manifest.pace, manifest.membership
    if not manifest.name.isprintable():
        raise ConfigError(f"name: must be printable, got {manifest.name!r}; try `--set name=starling`")
    if pace.kind != "clock" and pace.min_wait_s > pace.max_wait_s:
        raise ConfigError(
            f"pace.min_wait_s: must be <= pace.max_wait_s = {pace.max_wait_s:g}, got {pace.min_wait_s:g}; "
            f"try `--set pace.min_wait_s={pace.max_wait_s:g}`"
        )
    if pace.kind != "clock" and mix.theta != parts.fields_of(MixSection)["theta"].default:
        raise ConfigError(
            f"mix.theta: has no effect in {pace.kind} pace, where the overlay gives the weights, got {mix.theta:g}; leave it out, or try "
            "`--set pace.kind=clock`"
        )
    if timing.suspicion_s < 2 * timing.timeout_s:
        raise ConfigError(
            f"membership.suspicion_s: must be >= 2 membership.timeout_s = {2 * timing.timeout_s:g}, got {timing.suspicion_s:g}, "
            f"else a live member has no time to refute; try `--set membership.suspicion_s={4 * timing.timeout_s:g}`"
        )
    script.check(manifest)
    initial_model.check(manifest)
    warnings: list[str] = PACES.warnings(pace.kind, manifest)
    crew.check(manifest)
    presets.check(manifest)
    personal.check(manifest)
    buffers.check(manifest)
    alternating_blocks.check(manifest)
    gradient_point.check(manifest)
    parts.check_together(manifest)
    warnings += [*robustness.warnings(manifest), *inexact(manifest)]
    judged = ["admission.kind"]
    if trusted or not consent.names_code(manifest):
        _check_parts(manifest, trusted=trusted)
        weight.check(manifest, trusted=trusted)
        robustness.check(manifest, trusted=trusted)
        frame_limits.check(manifest)
        judged += ["mix.kind", "overlay.kind", "compress.select", *(["robust.rule"] if mix.kind == "gather" else [])]
    for key in judged:
        section, _, field = key.partition(".")
        chosen = getattr(manifest, section)
        warnings += parts.catalogue_of(chosen, field).warnings(getattr(chosen, field), manifest, trusted=trusted)
    if pace.kind == "clock" and manifest.overlay.kind != "sticky":
        warnings.append(
            f"overlay.kind: {manifest.overlay.kind} only names neighbors in clock pace, the weight is mix.theta = {mix.theta:g} and "
            "there are no rounds; `--set overlay=sticky` is made for it"
        )
    if pace.rounds == 0 and optimizer.schedule != "constant":
        warnings.append(f"optimizer.schedule: {optimizer.schedule} has no end to aim at in an endless run, lr stays constant")
    return warnings


def _check_parts(manifest: Manifest, *, trusted: bool) -> None:
    """Check that mixing algorithm, overlay, pace and codecs agree, by the facts in the catalogues.

    Raises ConfigError: they do not, and why.
    """
    facts = MIXERS.facts(manifest.mix.kind, trusted=trusted)
    _check_codecs(manifest.compress, trusted=trusted)
    _check_pace(manifest, facts)
    _check_graph(manifest, overlay_of(manifest, trusted=trusted), facts)


def _check_codecs(compress: CompressSection, *, trusted: bool) -> None:
    for key in ("request", "response"):
        codec = getattr(compress, key)
        if instead := QUANTIZERS.facts(codec, trusted=trusted).instead:
            raise ConfigError(
                f"compress.{key}: {codec} rounds by chance with an expected error larger than the values, so differences would grow "
                f"(Alistarh et al. 2017, arXiv:1610.02132, Lemma 3.1); try `--set compress.{key}={instead}`"
            )


def _check_pace(manifest: Manifest, facts: MixerFacts) -> None:
    mix, overlay, pace = manifest.mix, manifest.overlay, manifest.pace
    if pace.kind == "clock" and not facts.asynchronous:
        raise ConfigError(f"mix.kind: {mix.kind} counts on rounds and cannot run in clock pace; try `--set pace.kind=steps`, or mix=pet")
    if pace.overlap and pace.kind == "clock":
        raise ConfigError("pace.overlap: has no effect in clock pace, where exchanges always run beside local steps; leave it out")
    if pace.overlap and not facts.overlaps:
        raise ConfigError(
            f"pace.overlap: {mix.kind} exchanges the result of a round's local steps, so both cannot run at once; leave it out, or "
            "try `--set mix.kind=pet`"
        )
    if pace.kind == "clock" and overlay.average_every:
        raise ConfigError("overlay.average_every: an exact average needs rounds, got pace.kind=clock; try `--set pace.kind=steps`")
    if pace.gossips > 1 and (pace.kind != "steps" or pace.overlap or overlay.average_every):
        raise ConfigError(
            "pace.gossips: must be 1 unless pace.kind is steps, without pace.overlap and overlay.average_every (whose averaging has such "
            f"rounds already), got {pace.gossips}; try `--set pace.gossips=1`"
        )


def _check_graph(manifest: Manifest, graph: Overlay, facts: MixerFacts) -> None:
    mix, overlay, compress = manifest.mix, manifest.overlay, manifest.compress
    if facts.static and not (graph.symmetric and graph.period(_SOME) == 1):
        raise ConfigError(
            f"mix.kind: {mix.kind} needs one symmetric mixing matrix that never changes, on overlay={overlay.kind} it diverges "
            "(Yuan et al. 2018, arXiv:1702.05122); try `--set overlay.kind=ring`, or mix=pet"
        )
    if facts.exact and (compress.response != "identity" or compress.select != "full"):
        raise ConfigError(
            f"compress.response: {mix.kind} sends running sums or trackers, of which nothing may be left out, got {compress.response} and "
            f"select = {compress.select}; try `--set compress.response=identity --set compress.select=full`"
        )
    if facts.symmetric and not graph.symmetric:
        raise ConfigError(
            f"overlay.kind: {mix.kind} preserves the sum of trackers only if both ends give a link the same weight, but "
            f"overlay={overlay.kind} is directed; try `--set overlay.kind=base_k`"
        )
    if overlay.weights == "uniform" and not facts.exact:
        raise ConfigError(
            f"overlay.weights: uniform weights sum to 1 in one direction only, which suits push_sum and r_fast, got mix={mix.kind}; "
            "try `--set overlay.weights=metropolis_hastings`"
        )


def hash_of(raw: bytes) -> str:
    """Return the swarm id that these bytes of a manifest stand for."""
    digest = hashlib.blake2b(raw, digest_size=_ID_BYTES).digest()
    return "s" + base64.b32encode(digest).decode().lower()


def ordered(plain: Any) -> Any:
    """Return built-in types with the keys of every table in order, as they are packed."""
    return {key: ordered(plain[key]) for key in sorted(plain)} if isinstance(plain, dict) else plain


def _table(pairs: list[tuple[object, object]]) -> dict[str, object]:
    """Return a table of a manifest. Raises ValueError: a key is no text, as TOML and our own bytes never have."""
    table = {key: value for key, value in pairs if isinstance(key, str)}
    if len(table) < len(pairs):
        raise ValueError("a key is no text, or there twice")
    return table


def _another_version(why: str) -> ConfigError:
    return ConfigError(f"manifest: this swarm was created with another version: {why}; try `pip install --upgrade starling-swarm`")


def check_shard(manifest: Manifest, shard: int) -> None:
    """Raises ConfigError unless `shard` is -1 (derived from the peer id) or one of the manifest's shards of built-in data."""
    shards = manifest.partition.shards
    if shard >= shards:
        raise ConfigError(
            f"shard: must be < partition.shards = {shards}, got {shard}; try `--shard {shards - 1}`, or `--shard -1` to derive it "
            "from the peer id"
        )


def shard_of(manifest: Manifest, shard: int, peer: str) -> int:
    """Return the shard of built-in data that the node `peer` trains on: `shard` of its settings, where -1 derives it from the peer id."""
    return (shard if shard >= 0 else derive(0, "shard", peer)) % manifest.partition.shards
