"""`cordee doctor`: the checks on the screen, or as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from cordee.cli.options import TokenFile
from cordee.core.text import plain
from cordee.core.words import plural

if TYPE_CHECKING:
    from cordee.diagnose.check import Check

COLOURS = {"ok": "green", "warning": "yellow", "error": "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Do not measure number formats; show what is known.")] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Also check that a run can listen at this port.")
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Look at this machine: what helps a run, what hinders it, and what to do about it."""
    from cordee.diagnose.doctor import examine, exit_code

    look = partial(examine, quick=quick, port=port, token_file=token_file)
    if sys.stderr.isatty():  # some looks take seconds: show the name of the current one
        from rich.console import Console

        with Console(stderr=True).status("looking") as status:
            checks = look(tell=lambda name: status.update(f"looking at {name}"))
    else:
        checks = look()
    if as_json:
        print(json.dumps([one.to_dict() for one in checks], indent=1, ensure_ascii=False))
    else:
        _show(checks)
    raise typer.Exit(exit_code(checks))


def _show(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in checks:
        text = Text(plain(one.found))
        if one.advice:
            text.append(plain(f"\n→ {one.advice}"), style="dim" if one.state == "ok" else "")
        table.add_row(Text(one.state, style=COLOURS[one.state]), one.name, text)
    console = Console(highlight=False)
    console.print(table)
    console.print(summary(checks))


def summary(checks: list[Check]) -> str:
    """How many there are of each kind, in words."""
    counts = Counter(one.state for one in checks)
    bad = [plural(counts[state], state) for state in ("error", "warning") if counts[state]]
    return f"{len(checks)} checks: {' and '.join(bad) or 'all well'}"
