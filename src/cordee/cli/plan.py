"""`cordee plan`: the keys of a plan, or a plan with all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cordee.cli.options import Settings, parse_settings, python_file
from cordee.core.errors import PlanError, UsageError
from cordee.core.plan import Plan, plan_keys, written

if TYPE_CHECKING:
    from cordee.split.cut import Cut
    from cordee.split.stages import Stages


def plan(
    given: Annotated[
        str | None,
        typer.Argument(metavar="plan", help="auto, a YAML file, or key=value,...; nothing: list the keys."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Check it for so many workers.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead of YAML.")] = False,
    job: Annotated[
        Path | None, typer.Option(metavar="<file>", help="Print how this job's model is cut by the plan.")
    ] = None,
    settings: Settings = None,
) -> None:
    """List the keys of a plan, or check a plan and print it with all of them."""
    if given is None and not as_json:
        show_keys()
        return
    if given is not None and given.endswith(".py"):
        raise PlanError(
            f"{given} is a Python file: expected auto, a YAML file, or key=value,... How a job's model is cut is told "
            f"by `cordee plan tensor=2 --job {given}`; what it would cost is not built yet in this version"
        )
    made = Plan.parse(given or "auto")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: at least 1 is needed")
    least = len(made.proportions) or made.tensor * made.pipeline * max(1, made.shards)
    made.check(workers if workers is not None else least)
    cuts = find_cuts_of_job(job, settings, made) if job is not None else {}
    if as_json:
        told = {name: one.to_dict() for name, one in cuts.items()}
        print(json.dumps({"plan": made.to_dict(), **told} if told else made.to_dict(), indent=1))
        return
    print(made.to_yaml().rstrip())
    for line in (line for one in cuts.values() for line in str(one).splitlines()):
        print(f"# {line}")  # so that all of it can be saved as a plan


def find_cuts_of_job(file: Path, settings: list[str] | None, plan: Plan) -> dict[str, Cut | Stages]:
    """How the model of a job would be cut into slices and stages, by a few passes of two samples in this process."""
    if plan.tensor * plan.pipeline == 1:
        raise UsageError(f"--job {file}: plan {plan} cuts no model; give tensor=2 or pipeline=2, or more")
    from cordee.train.cutting import cut_of_job
    from cordee.train.jobfile import load_job
    from cordee.train.staging import stages_of_job

    job = load_job(python_file(file), parse_settings(settings))
    cut = cut_of_job(job, plan.tensor, sequence=plan.sequence) if plan.tensor > 1 else None
    cuts: dict[str, Cut | Stages] = {} if cut is None else {"cut": cut}
    return cuts | ({"stages": stages_of_job(job, plan)} if plan.pipeline > 1 else {})


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
