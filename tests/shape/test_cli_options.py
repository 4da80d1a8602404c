"""The options of the command line change only on purpose: `cli_options.txt` lists them, and this test compares.

After a change on purpose: python tests/shape/test_cli_options.py > tests/shape/cli_options.txt
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from cordee.cli.main import app

SNAPSHOT = Path(__file__).with_name("cli_options.txt")


def lines(command: Any, path: str) -> Iterator[str]:
    """One line a command, argument and option, in the order of the help."""
    yield path
    for one in command.params:
        names = " ".join([*one.opts, *one.secondary_opts]) if one.param_type_name == "option" else str(one.name).upper()
        repeated = " (repeatable)" if getattr(one, "multiple", False) or one.nargs == -1 else ""
        required = " (required)" if one.required else ""
        yield f"  {names}{repeated}{required}"
    for name, inner in getattr(command, "commands", {}).items():
        yield from lines(inner, f"{path} {name}")


def listing() -> str:
    """Every option of every command."""
    return "\n".join(lines(typer.main.get_command(app), "cordee")) + "\n"


def test_the_options_are_those_listed() -> None:
    assert listing() == SNAPSHOT.read_text(encoding="utf-8")


def test_every_command_and_option_is_explained() -> None:
    silent: list[str] = []

    def visit(command: Any, path: str) -> None:
        if not command.help:
            silent.append(path)
        silent.extend(
            f"{path} {one.name}" for one in command.params if one.param_type_name == "option" and not one.help
        )
        for name, inner in getattr(command, "commands", {}).items():
            visit(inner, f"{path} {name}")

    visit(typer.main.get_command(app), "cordee")
    assert silent == []


if __name__ == "__main__":
    print(listing(), end="")
