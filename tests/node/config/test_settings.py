"""User input: TOML, --set, rates. Every mistake is reported in one line with key, value, bound and the next command."""

import math
import re
from typing import Annotated

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from starling.gossip.compress.catalogue import SELECTIONS
from starling.gossip.errors import ConfigError
from starling.node.catalogues import TASKS
from starling.node.config import toml
from starling.node.config.parts import allowed, convert
from starling.node.config.presets import PRESETS
from starling.node.config.schema import (
    AdmissionSection,
    CompressSection,
    Manifest,
    NodeConfig,
    PartitionSection,
    RobustSection,
    TaskSection,
)
from starling.node.simulate.schema import Scenario
from starling.robust.catalogue import PREAGGREGATIONS, RULES


def refusal(act, *args):
    with pytest.raises(ConfigError) as error:
        act(*args)
    assert "\n" not in str(error.value)
    assert "`" in str(error.value) or "0 is no cap" in str(error.value)  # the message names the next command
    return str(error.value)


def setting(*assignments):
    return toml.apply_set(Manifest(), assignments)


@pytest.mark.parametrize("kind", [Manifest, NodeConfig])
def test_settings_survive_storage(kind):
    """In both forms: the stored one, and the commented one that `config show` prints."""
    assert convert(toml.parse(toml.to_toml(kind())), kind) == kind()
    assert convert(toml.parse(toml.render(kind())), kind) == kind()


def test_changed_settings_survive_both_forms():
    config = setting("mix=dsgd", "pace.rounds=7", "task=m:t", "task.model=cnn", "task.dropout=0.5", 'name=a "b" # c')
    assert convert(toml.parse(toml.to_toml(config)), Manifest) == config
    assert convert(toml.parse(toml.render(config)), Manifest) == config


def test_shown_settings_explain_themselves():
    """The explanations are the docstrings of `starling.node.config.schema`, so no second copy can go stale."""
    shown = toml.render(Manifest())
    assert '# Over `pace.rounds`; constant where rounds = 0 (endless).\nschedule = "cosine"\n' in shown
    assert "# The local optimiser." in shown


def sections(kind):
    """Yield a section and its subsections."""
    yield kind
    for field in msgspec.inspect.type_info(kind).fields:
        if isinstance(field.type, msgspec.inspect.StructType):
            yield from sections(field.type.cls)


@pytest.mark.parametrize("kind", [Manifest, NodeConfig, Scenario])
def test_every_key_and_section_says_what_it_means(kind):
    """A section by its docstring, a key by the string below it."""
    for section in sections(kind):
        assert section.__doc__, section
        meanings = toml.meanings(section)
        inner = {f.name for f in msgspec.inspect.type_info(section).fields if isinstance(f.type, msgspec.inspect.StructType)}
        assert set(section.__struct_fields__) - inner == meanings.keys() - inner, section
        assert all("".join(lines).strip() for lines in meanings.values())


@pytest.mark.parametrize(
    ("section", "key", "choices"),
    [
        (TaskSection, "kind", TASKS),
        (RobustSection, "rule", RULES),
        (RobustSection, "before", PREAGGREGATIONS),
        (CompressSection, "select", SELECTIONS),
        (AdmissionSection, "kind", ("open", "invite", "allow")),
        (PartitionSection, "kind", ("iid", "dirichlet", "by_label", "by_file", "by_key")),
        (Manifest, "preset", PRESETS),
    ],
)
def test_a_key_that_takes_names_lists_or_explains_them_all(section, key, choices):
    """A name added to a catalogue must be added to the help text. `before` explains its two without using their names."""
    text = "\n".join(toml.meanings(section)[key])
    words = {"nnm": "nearest", "bucketing": "bucket"}
    assert {name for name in choices if not re.search(rf"\b{words.get(name, name)}", text)} == set()


@pytest.mark.parametrize(
    ("assignment", "read"),
    [
        ("pace.rounds=50", lambda m: m.pace.rounds == 50),
        ("mix=dsgd", lambda m: m.mix.kind == "dsgd"),
        ("partition=by_label", lambda m: m.partition.kind == "by_label"),
        ("partition=by_label", lambda m: m.partition.shards == Manifest().partition.shards),
        ("task=my.module:make", lambda m: m.task.kind == "my.module:make"),
        ("optimizer.lr=1", lambda m: m.optimizer.lr == 1.0),
        (" pace . rounds = 5 ", lambda m: m.pace.rounds == 5),
        ("name=2024", lambda m: m.name == "2024"),
        ('name="x=y"', lambda m: m.name == "x=y"),
        ("name=true", lambda m: m.name == "true"),
        ("task.model=cnn", lambda m: m.task.params() == {"model": "cnn"}),
        ("task.hidden=64", lambda m: m.task.params() == {"hidden": 64}),
        ("optimizer.nesterov=true", lambda m: m.optimizer.nesterov is True),
        ("protocol=1", lambda m: m.protocol == 1),
    ],
)
def test_set_replaces_one_key(assignment, read):
    assert read(setting(assignment))


def test_set_treats_values_that_are_not_toml_as_text():
    """Any text is accepted here; the check of the value decides."""
    text = "[" * 100_000
    assert setting(f"name={text[:64]}").name == text[:64]
    assert setting("task=m:t", f"task.x={text}").task.params() == {"x": text}


def test_set_does_not_modify_its_input_and_later_values_win():
    before = Manifest()
    after = toml.apply_set(before, ["task.hidden=1", "pace.rounds=1", "pace.rounds=2"])
    assert (before, after.pace.rounds) == (Manifest(), 2)


def test_set_takes_lists_for_the_volunteers_settings():
    config = toml.apply_set(NodeConfig(), ['listen=["/ip4/0.0.0.0/tcp/4001"]', "limits.connections=3"])
    assert config.listen == ("/ip4/0.0.0.0/tcp/4001",)
    assert config.limits.connections == 3


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("pace.slot_s=-1", ["pace.slot_s: must be a number >= 0.01 and <= 3600, got -1"]),
        ("pace.slot_s=inf", ["pace.slot_s: must be a number >= 0.01 and <= 3600, got inf"]),
        ("task.x=nan", ["task.x: no such key; choose one of kind, batch_size, start, fingerprint, buffers, any_base, model, hidden"]),
        ("optimizer.momentum=1", ["optimizer.momentum: must be a number >= 0 and < 1, got 1"]),
        ("pace.rounds=1.5", ["pace.rounds: must be a whole number >= 0 and <= 1000000000, got 1.5"]),
        ("pace.kind=clok", ["pace.kind: must be one of clock, sampled, steps, got 'clok'", "did you mean clock"]),
        ("optimizer.schedule=cosin", ["optimizer.schedule: must be one of constant, cosine, exponential, linear", "did you mean cosine"]),
        ("mix=pte", ["mix.kind", "dsgd, exact_diffusion, gather, gradient_tracking", "'pte'", "did you mean pet"]),
        ("pace.ruonds=1", ["pace.ruonds: no such key", "did you mean pace.rounds", "quorum"]),
        ("pase.rounds=1", ["pase: no such key", "did you mean pace"]),
        ("compress=3", ["compress: is a section", "compress.select"]),
        ("pace.rounds.x=1", ["pace.rounds is a value"]),
        ("task.model.x=1", ["task.model.x: task.model is a value"]),
        ("task.hidden=[1]", ["task.hidden: must be a whole number >= 1 and <= 65536, got [1]"]),
        ("task.hiden=5", ["task.hiden: no such key; did you mean task.hidden? choose one of"]),
        ("task.context=5", ["task.context: digits has no such key; only text takes it"]),
        ("seed=99999999999999999999", ["seed", "99999999999999999999"]),
        ("name=", ["name: must be text of 1 to 64 characters, got ''"]),
        ("optimizer.lr=true", ["optimizer.lr: must be a number > 0 and <= 1000000, got True"]),
        ("pace.rounds=1\nseed=2", ["pace.rounds: must be a whole number"]),
        ("pace.rounds", ["--set: must look like pace.rounds=50, got 'pace.rounds'"]),
        ("=", ["--set: must look like"]),
        ("a..b=1", ["--set: must look like"]),
        ("x\ny=1", ["no such key"]),
        ("name=" + "x" * 10_000, ["name: must be text of 1 to 64 characters", "…"]),
    ],
)
def test_a_mistake_is_one_line_with_key_value_and_what_is_allowed(assignment, parts):
    message = refusal(setting, assignment)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pace = 3", "pace: must be a table, got 3"),
        ("[pace]\nslot_s = 'x'", "pace.slot_s: must be a number >= 0.01 and <= 3600, got 'x'"),
        ("[pace]\nruonds = 1", "did you mean pace.rounds"),
        ("[pace\n", "not TOML"),
        ("a = " + "[" * 100_000, "not TOML"),
        ("a." * 30_000 + "a = 1", "a key has more than 8 parts"),
        ("[" + "'a' . " * 30_000 + "a]", "a key has more than 8 parts"),
        ('x = [{a="""\n""""",' + "a." * 30_000 + "a = 1}]", "a key has more than 8 parts"),
        ("x = [{a='''\n''''," + '"\\"".' * 30_000 + "a = 1}]", "a key has more than 8 parts"),
        ('x = "' + '\\"' * 30_000, "not TOML"),
        ("seed = " + "9" * 500_000, "not TOML"),
        ("a" * 500_000, "not TOML"),
        ("seed = 1" + "_0" * 200_000, "not TOML"),
        ("a" + " " * 500_000 + "b", "not TOML"),
        ("[mix]\nkind = 7", "mix.kind: must be text of 1 to 128 characters, got 7"),
        ("task.model.b = 1", "task.model: must be one of cnn, mlp, got {'b': 1}"),
        ("name = 3", "name: must be text"),
    ],
)
def test_an_invalid_file_gives_one_line(tmp_path, text, says):
    path = tmp_path / "manifest.toml"
    path.write_text(text)
    message = refusal(toml.load, path, Manifest)
    assert says in message
    assert message.startswith(str(path))


def test_dots_in_strings_and_comments_are_no_keys():
    text = "a.a.a.a.a.a.a.a.a.a"
    for quoted in (f'"{text}"', f"'{text}'", f'"""{text}\n{text}"""', f"'''{text}\n{text}'''"):
        assert toml.parse(f"x = {quoted}  # {text}\n#{text}")["x"].startswith(text)


def test_a_path_that_is_no_file_gives_one_line(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge").write_bytes(b"#" * (2 << 20))
    for name in ("missing", "binary", "huge", "."):
        with pytest.raises(ConfigError) as error:
            toml.load(tmp_path / name, Manifest)
        assert "\n" not in str(error.value)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
plain_data = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2), max_leaves=4
)


@given(st.dictionaries(st.text(max_size=8), plain_data, max_size=3))
@example({"\x1f": math.inf})
def test_any_plain_data_gives_settings_or_one_line(raw):
    """This holds for manifests from peers too."""
    for candidate in (raw, {"pace": raw}, {"task": raw}):
        said = ""
        try:
            convert(candidate, Manifest)
        except ConfigError as error:
            said = str(error)
        assert said.isprintable()


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10mbit", 1_250_000),
        ("10 Mbit/s", 1_250_000),
        ("10mbps", 1_250_000),
        ("2.5MB/s", 2_500_000),
        ("800k", 800_000),
        ("65536", 65536),
        ("1gib", 2**30),
        ("1Kib", 1024),
        ("0", 0),
        ("none", 0),
        ("0.1", 1),
    ],
)
def test_rates_with_usual_units_are_parsed(text, rate):
    assert toml.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1", "1e9", "10 mbit per second", "nan", "\u0661\u0660", "9" * 30, "9" * 400, "1\n2"])
def test_an_invalid_rate_gives_one_line(text):
    assert "rate: must" in refusal(toml.parse_rate, text)


def test_large_bounds_are_shown_as_powers_of_two():
    """Not as 4.61168601843e+18."""
    assert allowed(Annotated[int, msgspec.Meta(ge=0, le=2**62)]) == "a whole number >= 0 and <= 2^62"
    assert allowed(Annotated[int, msgspec.Meta(lt=2**63 - 1)]) == "a whole number < 2^63 - 1"
    assert allowed(Annotated[float, msgspec.Meta(gt=0, le=1e6)]) == "a number > 0 and <= 1000000"
