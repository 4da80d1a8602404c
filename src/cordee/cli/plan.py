"""`cordee plan`: the keys of a plan, or a plan with all of them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cordee.core.errors import PlanError, UsageError
from cordee.core.plan import Plan, plan_keys, written


def plan(
    given: Annotated[
        str | None,
        typer.Argument(metavar="plan", help="auto, a YAML file, or key=value,...; nothing: list the keys."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Check it for so many workers.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead of YAML.")] = False,
) -> None:
    """List the keys of a plan, or check a plan and print it with all of them."""
    if given is None and not as_json:
        show_keys()
        return
    if given is not None and given.endswith(".py"):
        raise PlanError(
            f"{given} is a Python file: expected auto, a YAML file, or key=value,... What a job would cost under a "
            "plan is not built yet in this version"
        )
    made = Plan.parse(given or "auto")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: at least 1 is needed")
    made.check(workers if workers is not None else max(1, len(made.proportions)))
    print(json.dumps(made.to_dict(), indent=1) if as_json else made.to_yaml().rstrip())


def show_keys() -> None:
    """The table of keys on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("key=default", no_wrap=True)
    for name in ("meaning", "allowed"):
        table.add_column(name, overflow="fold")
    part = ""
    for key in plan_keys():
        if key.part != part:
            part = key.part
            table.add_row(f"[bold]{part}[/bold]", end_section=False)
        now = f"; works now: {', '.join(map(written, key.built))}" if key.built else ""
        table.add_row(f"  {key.name}={written(key.default)}", key.help, key.allowed + now)
    console = Console(highlight=False)
    console.print(table)
    console.print("Give them as --plan key=value,key=value or as a YAML file; what is not given keeps its default.")
