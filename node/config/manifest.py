"""A swarm's manifest: founded and signed by one, identified by its hash, checked by everybody who takes it in.

Canonical bytes are the msgpack of all fields, defaults included, keys sorted: one manifest has one byte string, and its hash is the
swarm id. So whoever holds an invite can take the manifest from anyone.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import msgpack
import msgspec

from starling.gossip.compress.catalogue import QUANTIZERS, SELECTORS
from starling.gossip.errors import ConfigError, RemoteProtocolError
from starling.gossip.mix.catalogue import MIXERS
from starling.gossip.mix.stability import disagreement_factor
from starling.gossip.seeds import derive
from starling.node import identity
from starling.node.config import admission, consent, kinds, presets, robustness, toml
from starling.node.config.overlay import overlay_of
from starling.node.config.schema import Manifest, MixSection, OverlaySection
from starling.node.identity import Identity

MAX_BYTES = 64 << 10
_MAX_ITEMS = 256  # of any list: room for them is made at once, and they may lie a thousand deep in each other
_ID_BYTES = 20
_SIGN_DOMAIN = b"starling/manifest/1\0"
# Keys of `mix` that came later; their defaults must stay.
_LATER = (
    "tracker_clip", "tracker_leak", "tracker_cap", "step_clip", "feedback_beta", "feedback_control", "feedback_momentum", "params",
)  # fmt: skip
_KNOWN_KAPPA = 0.3
_SOME = 16  # members, a number for which every overlay exists: one that stands still for so many does for all


def to_bytes(manifest: Manifest) -> bytes:
    """Canonical bytes. Keys that came later are left out where they have their default, so that swarms keep their ids."""
    plain, mix = msgspec.to_builtins(manifest), MixSection()
    for key in _LATER:
        if plain["mix"][key] == getattr(mix, key):
            del plain["mix"][key]
    for section in ("optimizer", "overlay", "robust"):
        if not plain[section]["params"]:
            del plain[section]["params"]
    packed: bytes = msgpack.packb(_sorted(plain), use_bin_type=True)
    return packed


def swarm_id(manifest: Manifest) -> str:
    """The letter s and 32 letters and digits: BLAKE2b-160 of the canonical bytes, in base32."""
    return _hash(to_bytes(manifest))


def found(manifest: Manifest, founder: Identity, now_ms: int) -> Manifest:
    """The manifest with founder, time and signature filled in.

    Args:
        manifest: what the swarm shall be.
        founder: who signs.
        now_ms: unix time.

    Raises:
        ConfigError: `check` objects.
    """
    check(manifest)
    unsigned = msgspec.structs.replace(manifest, founder=founder.peer_id, founded_ms=now_ms, signature="")
    signature = founder.sign(_SIGN_DOMAIN + to_bytes(unsigned)).hex()
    return msgspec.structs.replace(unsigned, signature=signature)


def verify(manifest: Manifest) -> None:
    """Check the founder's signature.

    Raises:
        ConfigError: not founded, or changed since.
    """
    if not manifest.signature:
        raise ConfigError("signature: is empty, this manifest was not founded; try `starling found MANIFEST.toml`")
    unsigned = msgspec.structs.replace(manifest, signature="")
    try:
        signature = bytes.fromhex(manifest.signature)
    except ValueError:
        signature = b""
    if not identity.verify(manifest.founder, signature, _SIGN_DOMAIN + to_bytes(unsigned)):
        raise ConfigError(
            "signature: does not fit, the manifest was changed after founding; restore it, or found another swarm with `starling found`"
        )


def from_bytes(raw: bytes, swarm: str, peer: str) -> Manifest:
    """A manifest received from a peer.

    Args:
        raw: as received.
        swarm: the swarm id asked for.
        peer: who sent it.

    Raises:
        RemoteProtocolError: these are not the bytes the id stands for, or not a signed manifest.
        ConfigError: the right bytes, but of another version, or `check` objects.
    """
    if len(raw) > MAX_BYTES or _hash(raw) != swarm:
        raise RemoteProtocolError(peer, "manifest_hash")
    try:
        plain = msgpack.unpackb(raw, raw=False, max_array_len=_MAX_ITEMS, max_ext_len=0, object_pairs_hook=_table)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise RemoteProtocolError(peer, "manifest_not_msgpack") from error
    if not isinstance(plain, dict):
        raise RemoteProtocolError(peer, "manifest_not_msgpack")
    try:
        manifest = toml.convert(plain, Manifest, whole=True)
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


def from_toml(text: str) -> Manifest:
    """A manifest from TOML text, keys and values checked; keys that it does not give are those of its preset.

    Raises:
        ConfigError: in one line, what is wrong.
    """
    return presets.from_toml(text, Manifest)


def to_toml(manifest: Manifest) -> str:
    """TOML with all fields, from which `from_toml` makes the same manifest."""
    return toml.to_toml(manifest)


def check(manifest: Manifest, *, trusted: bool = False) -> list[str]:
    """Rules between fields.

    Args:
        manifest: keys and values checked by themselves.
        trusted: the machine's owner agrees to import what "module:Class" names; else its rules are left to a later check.

    Returns:
        Warnings, one line each: allowed, but perhaps not meant.

    Raises:
        ConfigError: it cannot work.
    """
    optimizer, mix, pace, timing = manifest.optimizer, manifest.mix, manifest.pace, manifest.membership
    overlay, facts = manifest.overlay, MIXERS.facts(manifest.mix.kind, trusted=trusted)
    kinds.check_names(manifest)
    kinds.check_values(manifest)
    if not manifest.name.isprintable():
        raise ConfigError(f"name: must be printable, got {manifest.name!r}; try `--set name=starling`")
    if optimizer.kind != "sgd" and facts.rated and optimizer.correction_lr == 0.0:
        raise ConfigError(
            f"optimizer.correction_lr: must be > 0 with optimizer={optimizer.kind} and mix={mix.kind}, got 0; "
            "try `--set optimizer.correction_lr=0.5`"
        )
    if pace.min_wait_s > pace.max_wait_s:
        raise ConfigError(
            f"pace.min_wait_s: must be <= pace.max_wait_s = {pace.max_wait_s:g}, got {pace.min_wait_s:g}; "
            f"try `--set pace.min_wait_s={pace.max_wait_s:g}`"
        )
    if timing.suspicion_s < 2 * timing.timeout_s:
        raise ConfigError(
            f"membership.suspicion_s: must be >= 2 membership.timeout_s = {2 * timing.timeout_s:g}, got {timing.suspicion_s:g}, "
            f"else a live member has no time to refute; try `--set membership.suspicion_s={4 * timing.timeout_s:g}`"
        )
    presets.check(manifest)
    if trusted or not consent.names_code(manifest):
        _check_algorithm(manifest, trusted=trusted)
        robustness.check(manifest, trusted=trusted)
    warnings = robustness.doubts(manifest) + admission.check(manifest.admission)
    if pace.kind == "clock" and overlay.kind != "sticky":
        warnings.append(
            f"overlay.kind: {overlay.kind} only names who meets in clock pace, the weight is mix.theta = {mix.theta:g} and nobody "
            "waits for a round; `--set overlay=sticky` is made for it"
        )
    if overlay.kind == "hypercube":
        warnings.append(
            "overlay.kind: hypercube is defined for 2, 4, 8, 16 … members only; `--set overlay=base_k` takes any number"
        )
    if pace.rounds == 0 and optimizer.schedule != "constant":
        warnings.append(
            f"optimizer.schedule: {optimizer.schedule} has no end to aim at in an endless run, lr stays constant"
        )
    if mix.kind == "gradient_tracking" and pace.kind == "steps" and pace.local_steps > 1:
        warnings.append(
            f"pace.local_steps: gradient_tracking is defined for 1 (Nedić et al. 2017, arXiv:1607.03218), with {pace.local_steps} its "
            "tracker follows a node's own samples and may learn far worse than no tracker; try `--set mix=k_gt`, made for local steps"
        )
    if mix.kind == "pet" and mix.kappa > _KNOWN_KAPPA:
        warnings.append(
            f"mix.kappa: {mix.kappa:g} is above {_KNOWN_KAPPA:g}, the largest known to be stable; try `--set mix.kappa=0.3`"
        )
    return warnings


def _check_algorithm(manifest: Manifest, *, trusted: bool) -> None:
    """Whether mixing algorithm, overlay, pace and codecs go together.

    Raises:
        ConfigError: they do not, and why.
    """
    mix, overlay, pace, compress = manifest.mix, manifest.overlay, manifest.pace, manifest.compress
    graph, facts = overlay_of(manifest, trusted=trusted), MIXERS.facts(mix.kind, trusted=trusted)
    for key in ("request", "response"):
        codec = getattr(compress, key)
        if instead := QUANTIZERS.facts(codec, trusted=trusted).instead:
            raise ConfigError(
                f"compress.{key}: {codec} rounds by chance with an expected error larger than the values, so differences would grow "
                f"(Alistarh et al. 2017, arXiv:1610.02132, Lemma 3.1); try `--set compress.{key}={instead}`"
            )
    if pace.kind == "clock" and not facts.asynchronous:
        raise ConfigError(
            f"mix.kind: {mix.kind} counts on rounds and cannot run in clock pace; try `--set pace.kind=steps`, or mix=pet"
        )
    if pace.kind == "clock" and overlay.average_every:
        raise ConfigError(
            "overlay.average_every: an exact average takes rounds, got clock pace; try `--set pace.kind=steps`"
        )
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
            f"overlay.kind: {mix.kind} keeps the sum of trackers only where both ends give a link one weight, overlay={overlay.kind} has "
            "directions; try `--set overlay.kind=base_k`"
        )
    if overlay.weights == "uniform" and not facts.exact:
        raise ConfigError(
            f"overlay.weights: uniform weights sum to 1 only one way, which is for push_sum and r_fast, got mix={mix.kind}; "
            "try `--set overlay.weights=metropolis_hastings`"
        )
    if mix.kind == "quasi_global" and (manifest.optimizer.kind != "sgd" or manifest.optimizer.momentum):
        raise ConfigError(
            f"optimizer.momentum: quasi_global brings its own (mix.beta), so sgd's must be 0, got {manifest.optimizer.kind} with "
            f"{manifest.optimizer.momentum:g}; try `--set optimizer.momentum=0`"
        )
    if mix.kind == "psgd" and overlay.kind != "complete":
        raise ConfigError(
            f"overlay.kind: psgd sends every update to everybody, got {overlay.kind}; try `--set overlay.kind=complete`"
        )
    drawn = (
        []
        if compress.select != "budget" and not SELECTORS.facts(compress.select, trusted=trusted).random
        else [compress.select]
    )
    drawn += [compress.response] if QUANTIZERS.facts(compress.response, trusted=trusted).random else []
    if mix.kind == "psgd" and mix.feedback in {"ef21", "ef21_sgdm", "econtrol"} and drawn:
        raise ConfigError(
            f"mix.feedback: {mix.feedback} adds up messages, so replicas drift apart unless all peers are told the same, but "
            f"{' and '.join(drawn)} draw; try `--set compress.select=top_k --set compress.response=fp16`, or mix.feedback=ef"
        )
    if mix.kind == "outer":
        _check_outer(mix, overlay)


def _check_outer(mix: MixSection, overlay: OverlaySection) -> None:
    if overlay.average_every:
        if overlay.kind != "alone":
            raise ConfigError(
                f"overlay.kind: outer steps average by overlay.average_every, so nobody meets between, got {overlay.kind}; "
                "try `--set overlay.kind=alone`"
            )
        return
    pull = mix.pull or mix.outer_lr
    factor = disagreement_factor(mix.outer_momentum, pull, nesterov=mix.nesterov)
    if factor >= 1.0:
        raise ConfigError(
            f"mix.outer_momentum: {mix.outer_momentum:g} with {'mix.pull' if mix.pull else 'mix.outer_lr'} = {pull:g} and averages of "
            f"pairs multiplies the variance of the nodes by {factor:.3g} a round, must be < 1 (docs/algorithms.md, outer steps); "
            "try `--set mix.outer_momentum=0.5`, or exact averages: overlay=alone, average_every=1"
        )


def _hash(raw: bytes) -> str:
    digest = hashlib.blake2b(raw, digest_size=_ID_BYTES).digest()
    return "s" + base64.b32encode(digest).decode().lower()


def _sorted(plain: Any) -> Any:
    return {key: _sorted(plain[key]) for key in sorted(plain)} if isinstance(plain, dict) else plain


def _table(pairs: list[tuple[object, object]]) -> dict[str, object]:
    """A table of a manifest. Raises ValueError for keys that are no text, as TOML and our own bytes never have them."""
    table = {key: value for key, value in pairs if isinstance(key, str)}
    if len(table) < len(pairs):
        raise ValueError("a key is no text, or there twice")
    return table


def _another_version(why: str) -> ConfigError:
    return ConfigError(
        f"manifest: this swarm was founded with another version: {why}; try `pip install --upgrade starling-swarm`"
    )


def check_shard(manifest: Manifest, shard: int) -> None:
    """Raises ConfigError unless `shard` is -1 (derived from the peer id) or one of the manifest's shards of built-in data."""
    shards = manifest.partition.shards
    if shard >= shards:
        raise ConfigError(
            f"shard: must be < partition.shards = {shards}, got {shard}; try `--shard {shards - 1}`, or `--shard -1` to derive it "
            "from the peer id"
        )


def shard_of(manifest: Manifest, shard: int, peer: str) -> int:
    """The shard of built-in data that a node trains on.

    Args:
        manifest: of its swarm.
        shard: `shard` of its settings, -1 to derive it from the peer id.
        peer: its peer id.
    """
    return (shard if shard >= 0 else derive(0, "shard", peer)) % manifest.partition.shards
