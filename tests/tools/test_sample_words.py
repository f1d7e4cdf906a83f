"""The tool that draws texts for a reader."""

from pathlib import Path

from tools import sample_words
from tools.sample_words import KINDS, drawn, main, of_code

SOURCE = '''"""A module."""

class Meter:
    """Measures."""

    def read(self):
        # nobody reads this while it is written to
        raise ValueError(f"meter: must be open, got {self}")

def test_that_it_reads():
    pass
'''


def test_every_kind_of_text_is_found_in_a_file():
    assert sorted(of_code(Path("meter.py"), SOURCE)) == [
        ("comment", "meter.py:7", "nobody reads this while it is written to"),
        ("docstring", "meter.py:1 ", "A module."),
        ("docstring", "meter.py:3 Meter", "Measures."),
        ("message", "meter.py:8", "f'meter: must be open, got {self}'"),
        ("test name", "meter.py:10", "test_that_it_reads"),
    ]


def test_a_seed_draws_the_same_texts_equally_from_each_kind():
    texts = [(kind, f"{kind}{i}", "words") for kind in KINDS for i in range(50)]
    chosen = drawn(texts, 40, "a")
    assert chosen == drawn(texts, 40, "a") != drawn(texts, 40, "b")
    assert len(set(chosen)) == 40
    assert {kind: sum(text[0] == kind for text in chosen) for kind in KINDS} == dict.fromkeys(KINDS, 8)


def test_fewer_texts_than_requested_are_all_drawn():
    texts = [("title", str(i), "words") for i in range(3)]
    assert sorted(drawn(texts, 40, "a")) == texts


def test_without_git_a_seed_must_be_given(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["1"]) == 1
    assert capsys.readouterr().err == "git is missing: its commit is the seed; give one, `python tools/sample_words.py 1 SEED`\n"
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "meter.py").write_text(SOURCE)
    monkeypatch.setattr(sample_words, "ROOT", tmp_path)
    assert main(["1", "a"]) == 0
    assert "tools/meter.py:" in capsys.readouterr().out
