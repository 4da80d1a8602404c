"""The source tree as data: its modules, and what each of them imports."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

# From the lowest row up: a folder imports only rows below its own.
ROWS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("group",),
    ("feed", "split", "sync", "state"),
    ("diagnose",),
    ("train",),
    ("planner", "runtime", "watch", "twin", "compat"),
    ("cli",),
)


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    path: Path
    tree: ast.Module
    lines: int

    @property
    def folder(self) -> str:
        """The folder below `cordee`; empty for files beside the folders, which give them public names."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 2 or (self.path.name == "__init__.py" and len(parts) > 1) else ""


@dataclass(frozen=True)
class Import:
    """One name that a module imports."""

    target: str
    """The module or package; for `from a import b` the module `a.b` if it is one, else `a`."""
    name: str
    """What is taken from it; empty for the whole module."""
    line: int
    runs: bool
    """At import or, inside a function, at a call; False under TYPE_CHECKING."""


def module(name: str, source: str, path: Path = Path("none.py")) -> Module:
    """A module made of text, for the tree itself and for tests of these tests."""
    return Module(name, path, ast.parse(source), len(source.splitlines()))


@lru_cache(maxsize=1)
def package() -> tuple[Module, ...]:
    """Every module of the package."""
    found = []
    for path in sorted(SOURCE.glob("cordee/**/*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(module(name, path.read_text(encoding="utf-8"), path))
    return tuple(found)


def imports(one: Module, known: frozenset[str]) -> Iterator[Import]:
    """What `one` imports, wherever in the file; `known` are the names of all modules of the package."""
    yield from _walk(one.tree, one, known, True)


def _walk(node: ast.AST, one: Module, known: frozenset[str], runs: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, "", node.lineno, runs)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, one)
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield (
                Import(inner, "", node.lineno, runs) if inner in known else Import(base, alias.name, node.lineno, runs)
            )
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for kind, branch in ((False, node.body), (runs, node.orelse)):
            for inner_node in branch:
                yield from _walk(inner_node, one, known, kind)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, one, known, runs)


def _absolute(node: ast.ImportFrom, one: Module) -> str:
    if not node.level:
        return node.module or ""
    parts = one.name.split(".")
    is_package = one.path.name == "__init__.py"
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *((node.module or "").split(".") if node.module else [])])


def classes(one: Module) -> Iterator[ast.ClassDef]:
    """Every class of a module, nested ones included."""
    return (node for node in ast.walk(one.tree) if isinstance(node, ast.ClassDef))


def functions(one: Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a module with its dotted place in it, nested ones included."""
    yield from _functions(one.tree, "")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + child.name, child
        name = getattr(child, "name", None) if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else None
        yield from _functions(child, f"{prefix}{name}." if name else prefix)


def texts() -> Iterator[Path]:
    """The text files that a reader of the repository meets."""
    left_out = {"runs", "shared", "build", "dist", "site", "__pycache__"}
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [one for one in folders if one not in left_out and (one == ".ci" or not one.startswith("."))]
        for name in set(files) - {".git"}:  # a file where this is one of several worktrees
            path = Path(folder, name)
            if path.suffix in {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".jsonl", ".cfg", ""}:
                yield path
