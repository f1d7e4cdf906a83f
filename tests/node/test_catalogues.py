"""A manifest names a task; only installed code that declares itself a task is ever called."""

from __future__ import annotations

import sys
import types

import pytest

from starling.gossip.errors import ConfigError
from starling.node.catalogues import task
from starling.node.tasks.api import Task
from starling.node.tasks.convex import Quadratic
from starling.node.tasks.digits import Digits
from starling.node.tasks.images import Images
from starling.node.tasks.text import Text

called: list[str] = []


def bare():
    called.append("bare")


def wrong() -> int:
    called.append("wrong")
    return 7


def unresolved() -> NotThere:  # noqa: F821
    called.append("unresolved")


def small(hidden: int = 4) -> Digits:
    return Digits(hidden=hidden)


def by_protocol() -> Task:
    return Digits(hidden=5)


def liar() -> Task:
    return 7


def test_names_and_parameters_become_tasks():
    assert task("digits", {}) == Digits("mlp", 64)
    assert task("digits", {"model": "cnn", "hidden": 8}) == Digits("cnn", 8)
    assert task("images", {"path": "x", "classes": 3}) == Images(path="x", classes=3)
    assert task("text", {"context": 32}) == Text(context=32)
    assert task("quadratic", {"dim": 3}) == Quadratic(dim=3)


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("digit", {}, r"task\.kind: 'digit' is unknown, choose one of diagonal, digits, .*, synthetic, text; did you mean digits"),
        ("digits", {"layers": 2}, r"task\.layers: digits has no such key, it takes hidden, model"),
        ("digits", {"model": "gpt"}, "model must be one of mlp, cnn, got 'gpt'"),
        ("digits", {"hidden": 0}, "hidden must be >= 1 and <= 65536, got 0"),
        ("digits", {"hidden": 1.5}, "hidden must be >= 1 and <= 65536, got 1"),
        ("digits", {"hidden": True}, "hidden must be >= 1 and <= 65536, got True"),
        ("images", {"classes": 1}, "classes must be >= 2 and <= 65536, got 1"),
        ("text", {"width": 10, "heads": 4}, "width must be a multiple of heads = 4, got 10"),
        ("quadratic", {"condition": 0.5}, r"condition must be finite and >= 1 and <= 1e\+12, got 0\.5"),
        ("quadratic", {"noise": float("nan")}, "noise must be finite and >= 0"),
        ("quadratic", {"dtype": "float16"}, "dtype must be one of float32, float64"),
    ],
)
def test_errors_are_reported_in_one_line(kind, params, message):
    with pytest.raises(ConfigError, match=message) as caught:
        task(kind, params)
    assert "\n" not in str(caught.value)


def test_installed_functions_and_classes_make_tasks():
    for name in ("small", "by_protocol"):
        assert isinstance(task(f"{__name__}:{name}", {}), Digits)
    assert task("starling.node.tasks.digits:Digits", {"hidden": 3}) == Digits(hidden=3)
    assert task(f"{__name__}:small", {"hidden": 9}) == Digits(hidden=9)
    with pytest.raises(ConfigError, match=r"task\.width: .*:small has no such key, it takes hidden"):
        task(f"{__name__}:small", {"width": 9})


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("no_such_module:make", "os:no_such_name", "os.path.deeper:x"), r"task\.kind: .* is not installed here"),
        ((":", "os:", ":system", "..os:system", "os:a.b", "/tmp/evil:x", "os:system:x"), "must look like my_module:MyClass"),
    ],
)
def test_uninstalled_and_invalid_names_are_refused(kinds, message):
    for kind in kinds:
        with pytest.raises(ConfigError, match=message):
            task(kind, {})


@pytest.mark.parametrize("kind", ["os:system", f"{__name__}:bare", f"{__name__}:wrong", f"{__name__}:unresolved", "os:sep"])
def test_only_declared_tasks_are_called(kind):
    """A creator could otherwise name any function installed on a volunteer's machine, such as os:system."""
    called.clear()
    params = {"command": "exit 1"} if kind == "os:system" else {}
    with pytest.raises(ConfigError, match=r"must be a class with metric, .*, or a function annotated"):
        task(kind, params)
    assert called == []


def test_an_object_that_only_claims_to_be_a_task_is_refused(monkeypatch):
    module = types.ModuleType("liars")
    module.liar = liar
    monkeypatch.setitem(sys.modules, "liars", module)
    with pytest.raises(ConfigError, match="made a int without metric"):
        task("liars:liar", {})
