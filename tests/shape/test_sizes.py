"""Modules and functions stay small enough to be read."""

from __future__ import annotations

import ast

import pytest

from shape.exceptions import LONG_FUNCTIONS, LONG_MODULES, MANY_PARAMETERS
from shape.house import ROOT, functions, package

MODULE_LINES = 400
FUNCTION_LINES = 70
PARAMETERS = 8


def over(sizes: dict[str, int], limit: int, exceptions: dict[str, int]) -> list[str]:
    """What is larger than it may be, and exceptions that nothing needs any more."""
    wrong = []
    for name, size in sizes.items():
        if size > exceptions.get(name, limit):
            wrong.append(f"{name} has {size}, allowed {exceptions.get(name, limit)}")
    for name in exceptions:
        if sizes.get(name, 0) <= limit:
            wrong.append(f"{name} needs no exception any more")
    return wrong


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many parameters a caller may give."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + bool(given.vararg) + bool(given.kwarg)


def test_modules() -> None:
    paths = [path for part in ("src", "tests", "examples", "benchmarks") for path in ROOT.glob(f"{part}/**/*.py")]
    sizes = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert over(sizes, MODULE_LINES, LONG_MODULES) == []


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
        ({"a": 11}, {"a": 12}, 0),
        ({"a": 13}, {"a": 12}, 1),
        ({"a": 10}, {"a": 12}, 1),
        ({}, {"gone": 12}, 1),
    ],
)
def test_exceptions_only_shrink(sizes: dict[str, int], exceptions: dict[str, int], complaints: int) -> None:
    assert len(over(sizes, 10, exceptions)) == complaints


def test_parameters_are_counted_as_a_caller_sees_them() -> None:
    method = ast.parse("def f(self, a, b=1, *rest, c, **more): ...").body[0]
    assert isinstance(method, ast.FunctionDef)
    assert parameters(method) == 5
