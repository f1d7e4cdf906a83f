"""What a node checks in a manifest that names code before it starts an engine."""

import pytest

from starling.gossip.errors import ConfigError
from starling.node.config.schema import Manifest, MixSection, NodeConfig, PartitionSection
from starling.node.daemon.agreed import check_agreed

MIX = """
from starling.gossip.mix.base import MixerBase
from starling.gossip.mix.catalogue import MixerFacts


class Mine(MixerBase):
    facts = MixerFacts(static={static})
"""


def agreed(here, module, static=False):
    """Return a manifest whose mixing algorithm is a file of the current folder, and which is imported once."""
    (here / f"{module}.py").write_text(MIX.format(static=static))
    return Manifest(mix=MixSection(kind=f"{module}:Mine"))


def test_with_consent_a_part_of_the_current_folder_is_found(here):
    check_agreed(agreed(here, "agreed_mix"), NodeConfig(trust=True), ours=False)


def test_rules_stated_by_a_part_are_checked_with_consent_to_import(here):
    with pytest.raises(ConfigError, match="needs one symmetric mixing matrix"):
        check_agreed(agreed(here, "agreed_static_mix", static=True), NodeConfig(trust=True), ours=True)


def test_without_consent_a_stranger_s_part_is_refused(here):
    with pytest.raises(ConfigError, match=r"mix\.kind: this swarm wants to run"):
        check_agreed(agreed(here, "agreed_unasked"), NodeConfig(), ours=False)


def test_without_consent_the_creator_s_folder_is_not_searched(here):
    with pytest.raises(ConfigError, match=r"mix\.kind: 'agreed_own:Mine' is not found.*--set trust=true"):
        check_agreed(agreed(here, "agreed_own"), NodeConfig(), ours=True)


def test_a_missing_shard_is_refused():
    with pytest.raises(ConfigError, match=r"shard: must be < partition\.shards = 2"):
        check_agreed(Manifest(partition=PartitionSection(shards=2)), NodeConfig(shard=2), ours=True)
