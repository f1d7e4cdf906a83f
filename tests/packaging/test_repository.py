"""Parts of the repository that other programs read: the description on an index, links of folders, the Docker build's context."""

import re
from pathlib import Path

from tools.pypi_readme import LINK, absolute

ROOT = Path(__file__).parents[2]
HERE = "https://host.example/owner/name"


def test_links_and_pictures_of_the_readme_survive_without_the_repository():
    before = (ROOT / "README.md").read_text()
    after = absolute(before, HERE + "/")
    targets = [match["target"] for match in LINK.finditer(before)]
    assert any(target.endswith(".svg") for target in targets)
    assert all((ROOT / target).exists() for target in targets)
    assert not LINK.search(after)
    assert "```bash not-run" in before
    assert set(re.findall(r"^```(.+)$", after, re.MULTILINE)) <= {"bash", "python", "text"}
    assert f"({HERE}/raw/main/docs/stills/node.svg)" in after
    assert f"({HERE}/blob/main/docs/operating.md)" in after


def test_the_package_s_folders_are_relative_links_and_docker_sees_their_targets():
    """An absolute link would work on one machine only; a target missing from the Docker context would leave the link dangling."""
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    links = [path for path in (ROOT / "src" / "starling").iterdir() if path.is_symlink()]
    assert {path.name for path in links} >= {"gossip", "robust", "node", "tui", "kernels", "examples"}
    assert "!src" in sent
    for path in links:
        target = path.readlink()
        assert not target.is_absolute()
        assert f"!{path.resolve().relative_to(ROOT)}" in sent
