"""Folders import downwards, modules never in a circle, and every folder has a subject."""

from __future__ import annotations

import re

import pytest

from shape.exceptions import FOLDER_ORDER
from shape.house import ROOT, ROWS, SOURCE, Module, imports, module, package

ROW_OF = {folder: row for row, folders in enumerate(ROWS) for folder in folders}


def upward_imports(modules: tuple[Module, ...]) -> set[tuple[str, str]]:
    """(importing module, imported module) against the order of the rows."""
    known = frozenset(one.name for one in modules)
    wrong = set()
    for one in modules:
        if not one.folder:
            continue  # the package's own __init__ shows names of all rows
        for found in imports(one, known):
            if found.target == "cordee" and found.name == "__version__":
                continue
            parts = found.target.split(".")
            if parts[0] != "cordee" or parts[1:2] == [one.folder]:
                continue
            # `import cordee` itself would be a door to every row.
            if len(parts) == 1 or ROW_OF[parts[1]] >= ROW_OF[one.folder]:
                wrong.add((one.name, found.target))
    return wrong


def cycle(modules: tuple[Module, ...]) -> list[str]:
    """One circle of imports of any length, those inside functions included; empty if there is none."""
    known = frozenset(one.name for one in modules)
    edges = {
        one.name: {found.target for found in imports(one, known) if found.runs and found.target in known}
        for one in modules
    }
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(edges[name]):
            found = visit(target, [*path, name])
            if found:
                return found
        done.add(name)
        return []

    return next((found for name in sorted(edges) if (found := visit(name, []))), [])


def test_every_folder_has_a_row_and_every_import_points_down() -> None:
    assert {one.folder for one in package()} - {""} <= set(ROW_OF)
    assert upward_imports(package()) == set(FOLDER_ORDER)


def test_an_upward_import_is_seen_wherever_it_hides() -> None:
    tree = (
        module("cordee.train.job", ""),
        module("cordee.feed.order", "def f():\n    from cordee.train import job\n"),
        module(
            "cordee.sync.server", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cordee.feed.order\n"
        ),
        module("cordee.state.load", "import cordee\nfrom ..group import hub\n"),
        module("cordee.watch.show", "from cordee.core.events import EventLog\nfrom cordee import __version__\n"),
    )
    assert upward_imports(tree) == {
        ("cordee.feed.order", "cordee.train.job"),
        ("cordee.sync.server", "cordee.feed.order"),
        ("cordee.state.load", "cordee"),
    }


def test_no_module_imports_itself_through_others() -> None:
    assert cycle(package()) == []


@pytest.mark.parametrize(
    ("form", "length"),
    [
        ("import {}", 10),
        ("def late():\n    import {}", 10),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {}", 0),
    ],
)
def test_a_long_circle_is_seen_wherever_it_closes(form: str, length: int) -> None:
    names = [f"cordee.core.m{number}" for number in range(9)]
    ring = [module(name, f"import {names[(at + 1) % 9]}") for at, name in enumerate(names)]
    ring[4] = module(names[4], form.format(names[5]))
    assert len(cycle(tuple(ring))) == length


def test_core_imports_neither_torch_nor_numpy() -> None:
    heavy = {
        (one.name, found.target)
        for one in package()
        if one.folder == "core"
        for found in imports(one, frozenset())
        if found.target.split(".")[0] in {"torch", "numpy"}
    }
    assert heavy == set()


def test_every_folder_is_a_package_with_a_subject() -> None:
    for folder in SOURCE.glob("cordee/*/"):
        if not folder.is_dir() or folder.name == "__pycache__":
            continue
        names = {path.name for path in folder.glob("*.py")}
        assert "__init__.py" in names and len(names) > 1, f"{folder.name} is empty or no package"
    named = {part for one in package() for part in one.name.split(".")}
    assert not {name for name in named if re.fullmatch(r"_?(utils?|helpers?|misc|common)", name)}


def test_the_picture_of_the_house_shows_these_rows() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = {
        int(row): set(re.findall(r"`(\w+)`", names)) for row, names in re.findall(r"^\| (\d) \|(.*)\|$", text, re.M)
    }
    assert shown == {number: set(folders) for number, folders in enumerate(ROWS, start=1)}
