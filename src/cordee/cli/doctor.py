"""`cordee doctor`: the checks on the screen, or as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from cordee.core.text import plain
from cordee.core.words import plural
from cordee.diagnose.check import Check
from cordee.diagnose.doctor import Examination, examine, exit_code
from cordee.runtime.engines.warm import connect_warm

COLOURS = {"ok": "green", "warning": "yellow", "error": "bold red"}


def doctor(as_json: bool, quick: bool, port: int | None, token_file: Path | None) -> None:
    """Look, print, and end with the code of the first error."""
    checks = _examine(Examination(quick, port, token_file, connect_warm))
    if as_json:
        print(json.dumps([one.to_dict() for one in checks], indent=1, ensure_ascii=False))
    else:
        _show(checks)
    raise typer.Exit(exit_code(checks))


def _examine(examination: Examination) -> list[Check]:
    """With the name of the current look on a terminal: some take seconds."""
    if not sys.stderr.isatty():
        return examine(examination)
    from rich.console import Console

    with Console(stderr=True).status("looking") as status:
        return examine(examination, lambda name: status.update(f"looking at {name}"))


def _show(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in checks:
        said = Text(plain(one.found))
        if one.advice:
            said.append(plain(f"\n→ {one.advice}"), style="dim" if one.state == "ok" else "")
        table.add_row(Text(one.state, style=COLOURS[one.state]), one.name, said)
    console = Console(highlight=False)
    console.print(table)
    console.print(summary(checks))


def summary(checks: list[Check]) -> str:
    """How many there are of each kind, in words."""
    errors = sum(one.state == "error" for one in checks)
    warnings = sum(one.state == "warning" for one in checks)
    if not errors and not warnings:
        return f"{len(checks)} checks, all well"
    counted = [plural(count, word) for count, word in ((errors, "error"), (warnings, "warning")) if count]
    return f"{len(checks)} checks: {' and '.join(counted)}"
