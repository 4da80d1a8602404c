"""Every public name says what it is, in a sentence and in types."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shape.house import Module, module, package

Named = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(one: Module) -> Iterator[tuple[str, Named]]:
    """The module itself, its public classes and functions, and their public methods."""
    yield one.name, one.tree
    stack: list[tuple[str, ast.AST]] = [(one.name, one.tree)]
    while stack:
        prefix, node = stack.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if child.name.startswith("_") or is_second_face(child):
                continue
            yield f"{prefix}.{child.name}", child
            if isinstance(child, ast.ClassDef):
                stack.append((f"{prefix}.{child.name}", child))


def is_second_face(node: Named) -> bool:
    """A setter or overload: its documented face stands elsewhere."""
    decorators = [ast.unparse(one) for one in getattr(node, "decorator_list", [])]
    return any(one.endswith((".setter", ".deleter")) or one.split(".")[-1] == "overload" for one in decorators)


def undocumented(one: Module) -> list[str]:
    """Public names whose docstring is missing or does not begin with one sentence on its own line."""
    wrong = []
    for name, node in public(one):
        first = (ast.get_docstring(node) or "").split("\n\n")[0]
        if not first.endswith((".", ":", "?")) or "\n" in first:
            wrong.append(name)
    return wrong


def untyped(one: Module) -> list[str]:
    """Public functions with a parameter or a result of unknown type."""
    wrong = []
    for name, node in public(one):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        bare = [each.arg for each in every if each and not each.annotation and each.arg not in ("self", "cls")]
        if bare or node.returns is None:
            wrong.append(name)
    return wrong


def test_public_names_are_documented() -> None:
    assert [name for one in package() for name in undocumented(one)] == []


def test_public_names_are_typed() -> None:
    assert [name for one in package() for name in untyped(one)] == []


def test_what_is_missing_is_seen() -> None:
    source = '''"""A module."""
class Good:
    """A class."""
    def bare(self, value):
        """A method."""
    @property
    def silent(self) -> int: ...
    def _private(self): ...
def broken() -> None:
    """A line without an end
    that goes on."""
'''
    one = module("m", source)
    assert undocumented(one) == ["m.broken", "m.Good.silent"]
    assert untyped(one) == ["m.Good.bare"]
