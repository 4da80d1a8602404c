"""Modules, classes and functions stay small enough to be read."""

from __future__ import annotations

import ast

import pytest

from shape.exceptions import LONG_CLASSES, LONG_FUNCTIONS, LONG_MODULES, MANY_NAMES, MANY_PARAMETERS
from shape.house import ROOT, classes, functions, module, package

MODULE_LINES = 350
TEST_LINES = 400  # a file of tests is read one test at a time
CLASS_LINES = 250
CLASS_NAMES = 15
SESSION_NAMES = 12
FUNCTION_LINES = 70
PARAMETERS = 8


def over(sizes: dict[str, int], limit: int, exceptions: dict[str, tuple[int, str]]) -> list[str]:
    """What is larger than it may be, and exceptions without a reason or that nothing needs any more."""
    wrong = []
    for name, size in sizes.items():
        allowed, _ = exceptions.get(name, (limit, ""))
        if size > allowed:
            wrong.append(f"{name} has {size}, allowed {allowed}")
    for name, (_, reason) in exceptions.items():
        if sizes.get(name, 0) <= limit:
            wrong.append(f"{name} needs no exception any more")
        if not reason:
            wrong.append(f"{name} is an exception without a reason")
    return wrong


def public_names(one: ast.ClassDef) -> set[str]:
    """The methods and properties of a class that its users see."""
    methods = {node.name for node in one.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return {name for name in methods if not name.startswith("_")}


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many parameters a caller may give."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + bool(given.vararg) + bool(given.kwarg)


def test_modules() -> None:
    for limit, parts in ((MODULE_LINES, ("src", "examples", "benchmarks")), (TEST_LINES, ("tests",))):
        paths = [path for part in parts for path in ROOT.glob(f"{part}/**/*.py")]
        sizes = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
        exceptions = {name: entry for name, entry in LONG_MODULES.items() if name.startswith(parts)}
        assert over(sizes, limit, exceptions) == []


def test_classes() -> None:
    found = {f"{one.name}:{node.name}": node for one in package() for node in classes(one)}
    lines = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in found.items()}
    assert over(lines, CLASS_LINES, LONG_CLASSES) == []
    names = {name: len(public_names(node)) for name, node in found.items()}
    session = {name: names.pop(name) for name in list(names) if name.endswith(":Session")}
    assert len(session) == 1
    many = {name: MANY_NAMES[name] for name in MANY_NAMES if name not in session}
    assert over(names, CLASS_NAMES, many) == []
    assert over(session, SESSION_NAMES, {name: MANY_NAMES[name] for name in session if name in MANY_NAMES}) == []


def test_functions() -> None:
    sizes = {
        f"{one.name}:{name}": (function.end_lineno or 0) - function.lineno + 1
        for one in package()
        for name, function in functions(one)
    }
    assert over(sizes, FUNCTION_LINES, LONG_FUNCTIONS) == []


def test_parameters() -> None:
    counts = {f"{one.name}:{name}": parameters(function) for one in package() for name, function in functions(one)}
    assert over(counts, PARAMETERS, MANY_PARAMETERS) == []


@pytest.mark.parametrize(
    ("sizes", "exceptions", "complaints"),
    [
        ({"a": 10}, {}, 0),
        ({"a": 11}, {}, 1),
        ({"a": 11}, {"a": (12, "why")}, 0),
        ({"a": 11}, {"a": (12, "")}, 1),
        ({"a": 13}, {"a": (12, "why")}, 1),
        ({"a": 10}, {"a": (12, "why")}, 1),
        ({}, {"gone": (12, "why")}, 1),
    ],
)
def test_exceptions_only_shrink(sizes: dict[str, int], exceptions: dict[str, tuple[int, str]], complaints: int) -> None:
    assert len(over(sizes, 10, exceptions)) == complaints


def test_parameters_are_counted_as_a_caller_sees_them() -> None:
    method = ast.parse("def f(self, a, b=1, *rest, c, **more): ...").body[0]
    assert isinstance(method, ast.FunctionDef)
    assert parameters(method) == 5


def test_public_names_are_those_that_users_see() -> None:
    text = """
class Outer:
    def seen(self): ...
    def _hidden(self): ...
    def __len__(self): ...
    @property
    def size(self): ...
    @size.setter
    def size(self, value): ...
    class Inner:
        async def also_seen(self): ...
"""
    found = {node.name: public_names(node) for node in classes(module("a", text))}
    assert found == {"Outer": {"seen", "size"}, "Inner": {"also_seen"}}
