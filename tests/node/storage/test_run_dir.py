"""The run directory: files changed by a user cost one clear line."""

import pytest

from starling.gossip.errors import ConfigError
from starling.node.storage.run_dir import RunDir


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.write_bytes(b"\xff\xfestarling1:"), "it is no text"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"\n"), "invite is empty"),
        (lambda path: path.write_text("starling1:abc"), "invite is damaged"),
    ],
    ids=["not_utf8", "folder", "empty", "cut"],
)
def test_an_unreadable_invite_gives_one_line(tmp_path, damage, why):
    place = RunDir.create(tmp_path / "n")
    damage(place.invite_file)
    with pytest.raises(ConfigError, match=why) as error:
        place.read_invite()
    assert "\n" not in str(error.value)
    assert str(place.invite_file) in str(error.value)
    assert "`starling" in str(error.value)
