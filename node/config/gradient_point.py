"""Rules for gradients at another point than the model: `optimizer.sam`, `optimizer.gradient`. Torch-free."""

from typing import Any

from starling.gossip.errors import ConfigError


def check(manifest: Any) -> None:
    """Raise ConfigError where `optimizer.sam` or `optimizer.gradient` cannot work, or would be ignored."""
    section, mix = manifest.optimizer, manifest.mix
    if section.gradient == "plain" and not section.sam:
        return
    key = "sam" if section.sam else "gradient"
    if mix.kind == "seeds":
        raise ConfigError(f"optimizer.{key}: seeds computes no gradient; leave it out")
    if section.sam and section.gradient != "plain":
        raise ConfigError(f"optimizer.sam: {section.gradient} looks ahead already, must be 0; try `--set optimizer.gradient=plain`")
    if section.gradient == "plain":
        return
    if section.kind != "sgd" or section.momentum:
        raise ConfigError(
            f"optimizer.gradient: {section.gradient} steps are plain steps, for sgd without momentum, got {section.kind}; "
            "try `--set optimizer.kind=sgd --set optimizer.momentum=0`"
        )
    if section.gradient == "extragradient" and mix.kind not in {"pet", "dsgd"}:
        raise ConfigError(
            f"optimizer.gradient: extragradient corrects two gradients a step, and {mix.kind} counts each; try `--set mix.kind=pet`"
        )
