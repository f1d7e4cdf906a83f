"""`tools/figures.py`: how figures are counted, and that a figure above its limit fails."""

import ast
import re

import pytest

from starling.node.net.api import Inbound
from tests.harness import pages
from tools import figures, stops

FUNCTION = """
def receive(self, message):
    if message and self.open or self.late:
        return 1 if self.open else 2
    elif message is None:
        raise ValueError
    for each in [one for one in message if one]:
        try:
            each()
        except ValueError:
            pass
    match message:
        case 1:
            pass
        case _:
            pass

    def inner():
        while True:
            assert message
"""


def test_branches_are_counted_by_statement_kind():
    """if, elif, a conditional expression, a condition in a comprehension, for, except, two cases, while: neither `and` nor assert."""
    assert figures.branches(ast.parse(FUNCTION)) == 9


def test_complexity_equals_radon_s_with_closures():
    """1, if with two more operands, the expression, elif, for, a comprehension with its condition, except, two cases; 1, while, assert."""
    (function,) = figures.functions(ast.parse(FUNCTION))
    assert figures.complexity(function) == 1 + 3 + 1 + 1 + 1 + 2 + 1 + 2 + 3


def test_methods_are_functions_and_closures_are_not():
    made = ast.parse("class A:\n    def a(self):\n        def b(): ...\n    async def c(self): ...\ndef d(): ...")
    assert [each.name for each in figures.functions(made)] == ["a", "c", "d"]


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ("swaps(edge) or tracks(edge)", 2),
        ("isinstance(edge, Swapping | Gathering)", 1),
        ("isinstance(edge, api.Tracking)", 1),
        ("kind is EdgeKind.SWAPS", 1),
        ("match kind:\n    case EdgeKind.SWAPS:\n        pass", 1),
        ("catalogue.swaps(edge)", 1),
        ("isinstance(message, Offer)", 0),
        ("kind == Kind.SWAPS", 0),
    ],
)
def test_a_test_of_the_edge_kind_is_counted_in_every_form(source, asks):
    assert figures.questions(ast.parse(source)) == asks


def test_attributes_are_declared_or_set_by_any_method_and_arguments_are_the_constructors():
    made = ast.parse(
        "class A:\n"
        "    kind: ClassVar[str] = 'a'\n"
        "    x: int\n"
        "    def __init__(self, x, *, y, z=1): self.x, self._y = x, y\n"
        "    def later(self): self.z: int = 1; self.x += 1; other.w = 2\n"
        "@dataclass(slots=True)\n"
        "class B:\n"
        "    a: int\n"
        "    b: int = field(init=False)\n"
        "    _c: int = 0\n"
        "class C:\n"
        "    a: int\n"
    )
    assert [(figures.attributes(each), figures.arguments(each)) for each in made.body] == [(3, 3), (3, 1), (1, 0)]


@pytest.mark.slow
def test_core_files_exist_and_every_static_figure_has_a_limit():
    assert figures.core()
    assert figures.static().keys() <= figures.LIMITS.keys()


def test_a_figure_above_its_limit_fails_and_one_below_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(figures, "LIMITS", {"a": 3, "b": 3, "c": 3})
    monkeypatch.setattr(figures, "figures", lambda: {"a": 3, "b": 2, "c": 3})
    assert figures.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines] == [["3", "3"], ["2", "3", "lower", "the", "limit"], ["3", "3"]]
    monkeypatch.setattr(figures, "figures", lambda: {"a": 4, "b": 2, "c": 3})
    assert figures.main() == 1
    assert capsys.readouterr().out.splitlines()[0].split()[1:] == ["4", "3", "exceeded"]


def test_a_turning_back_is_a_stop_in_a_module_that_was_left():
    way = stops.Way()
    for module, name in (("a", "f"), ("b", "g"), ("b", "h"), ("a", "f"), ("a", "i"), ("c", "j"), ("b", "k")):
        way.enter((module, name))
    assert len(way.stops) == 6
    assert way.turnings == 2


@pytest.mark.parametrize("shared", [b"", b"a", (), frozenset()])
def test_singletons_of_python_do_not_count_as_part_of_an_update(shared):
    """Otherwise every function with an empty value, such as a record without an invitation, would count as receiving the update."""
    update = stops.Update(Inbound("peer", "exchange", b"frame"))
    update.add((shared, b"payload"))
    assert not update.within((shared, 1))


def test_an_updates_bytes_include_all_its_parts():
    payload = bytes(range(9))
    update = stops.Update(Inbound("peer", "exchange", b"frame"))
    assert not update.within([payload])
    update.add((b"", payload))
    assert update.within([payload])
    assert update.within({"payload": payload})


@pytest.fixture(scope="module")
def ways():
    return stops.measure()


@pytest.mark.slow
def test_the_architecture_page_lists_the_current_path_of_an_update(ways):
    """`python tools/stops.py --write` updates the list; the text around it names modules in the order in which they are entered."""
    way, page = ways["update answered"], stops.PAGE.read_text()
    assert pages.block(stops.PAGE, "stops").text == stops.listed(way)
    told = page.partition("## The walk of one update")[2].partition("```text stops")[0]
    visited = list(dict.fromkeys(module for module, _ in way.stops))
    named = [module for module in dict.fromkeys(re.findall(r"`(\w[\w/]*\.py)`", told)) if module in visited]
    assert len(named) >= len(visited) / 2
    assert named == sorted(named, key=visited.index)


@pytest.mark.slow
def test_paths_of_steps_and_updates_have_the_right_start_and_end(ways):
    """A step ends with the optimiser; an update is decoded, clipped, and ends in the model. Properties and the wire do not count."""
    default, answered, applied = ways.values()
    assert default.stops[0] == ("node/engine/task_driver.py", "TaskDriver.step")
    assert default.stops[-1] == ("node/engine/flat_optimizer.py", "Optimizer.step")
    for way in (answered, applied):
        names = [name for _, name in way.stops]
        assert ("gossip/wire/frames.py", "decode") in way.stops
        assert ("robust/clip.py", "clip") in way.stops
        assert names.index("decode") < names.index("clip")
        assert not any(module.startswith(stops.WIRE) or "<" in name for module, name in way.stops)
    assert ("gossip/wire/frames.py", "encode") in answered.stops
    assert ("gossip/wire/frames.py", "encode") not in applied.stops
