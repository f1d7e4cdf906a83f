"""A release's section of the changelog has the fragments in the order of newsfragments/README.md."""

from pathlib import Path

import pytest

from tools import changelog

ROOT = Path(__file__).parents[2]


def test_the_fragments_of_this_tree_make_a_section():
    """Every file must be a valid fragment: one of a misspelt kind would be left out."""
    files = [path for path in (ROOT / "newsfragments").glob("*.md") if path.name != "README.md"]
    made = changelog.section("Unreleased", {file.name: file.read_text() for file in files})
    assert made.count("\n- ") == len(files)
    assert [made.index(f"### {title}") for title in changelog.KINDS.values() if f"### {title}" in made] == sorted(
        made.index(f"### {title}") for title in changelog.KINDS.values() if f"### {title}" in made
    )


@pytest.mark.parametrize("wrong", [{"a.news.md": "x"}, {"a.md": "x"}, {"a.fix.md": " \n"}])
def test_an_invalid_fragment_is_an_error(wrong):
    with pytest.raises(ValueError, match="newsfragments/a"):
        changelog.section("1.0", wrong)


def test_a_release_s_section_is_placed_below_unreleased_and_above_the_last():
    first = changelog.released("# Changelog\n\nIntro.\n\n## Unreleased\n\nThe first.\n", "## 0.1.0 (2026-01-02)\n\n### New\n\n- A.\n")
    assert first == "# Changelog\n\nIntro.\n\n## Unreleased\n\n## 0.1.0 (2026-01-02)\n\n### New\n\n- A.\n"
    second = changelog.released(first, "## 0.2.0 (2026-02-03)\n\n### Fixed\n\n- B.\n")
    assert second.index("## Unreleased") < second.index("## 0.2.0") < second.index("- B.") < second.index("## 0.1.0") < second.index("- A.")
    with pytest.raises(ValueError, match="Unreleased"):
        changelog.released("# Changelog\n", "")


@pytest.mark.parametrize("words", [["1.0"], ["1.0", "2026-01-02"], ["v1.0.0", "2026-01-02"], ["1.0.0", "today"]])
def test_a_release_has_three_numbers_and_a_day(words, capsys):
    assert changelog.main(words) == 2
    assert "X.Y.Z YYYY-MM-DD" in capsys.readouterr().err


def test_a_release_is_written_once_and_comes_after_the_one_before(tmp_path, monkeypatch, capsys):
    """The fragments become its section and are deleted; releasing an older number again changes nothing."""
    monkeypatch.setattr(changelog, "ROOT", tmp_path)
    (tmp_path / "newsfragments").mkdir()
    (tmp_path / "newsfragments" / "a.fix.md").write_text("A.")
    page = tmp_path / "CHANGELOG.md"
    page.write_text("# Changelog\n\n## Unreleased\n\nThe first.\n")
    assert changelog.main(["0.10.0", "2026-01-02"]) == 0
    assert "## 0.10.0 (2026-01-02)\n\n### Fixed\n\n- A." in (written := page.read_text())
    assert not [*(tmp_path / "newsfragments").iterdir()]
    assert changelog.main(["0.9.0", "2026-01-03"]) == 2
    assert "0.9.0 does not come after 0.10.0" in capsys.readouterr().err
    assert page.read_text() == written
