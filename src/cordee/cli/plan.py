"""`cordee plan`: the keys of a plan, or a plan with all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cordee.cli.options import Settings, parse_settings, python_file
from cordee.core.errors import PlanError, UsageError
from cordee.core.plan import Plan, plan_keys
from cordee.core.plantext import written

if TYPE_CHECKING:
    from cordee.diagnose.room import Needs, Room, Verdict
    from cordee.split.cut import Cut
    from cordee.split.schedules.simulate import Timeline
    from cordee.split.stages import Stages


def plan(
    given: Annotated[
        str | None,
        typer.Argument(metavar="plan", help="auto, a YAML file, or key=value,...; nothing: list the keys."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Check it for so many workers.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead of YAML.")] = False,
    job: Annotated[
        Path | None,
        typer.Option(metavar="<file>", help="Print what this job needs of memory, and how its model is cut."),
    ] = None,
    settings: Settings = None,
) -> None:
    """List the keys of a plan, or check a plan and print it with all of them."""
    if given is None and not as_json:
        show_keys()
        return
    if given is not None and given.endswith(".py"):
        raise PlanError(
            f"{given} is a Python file: expected auto, a YAML file, or key=value,... What a job needs of memory, and "
            f"how its model is cut, is told by `cordee plan tensor=2 --job {given}`; how long it takes is not built "
            "yet in this version"
        )
    made = Plan.parse(given or "auto")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers}: at least 1 is needed")
    least = made.tensor * made.pipeline * (len(made.proportions) or max(1, made.shards))
    workers = workers if workers is not None else least
    made.check(workers)
    found = look_at_job(job, settings, made, workers) if job is not None else None
    if as_json:
        print(json.dumps(made.to_dict() if found is None else {"plan": made.to_dict(), **found.to_dict()}, indent=1))
        return
    print(made.to_yaml().rstrip())
    for line in found.lines() if found is not None else ():
        print(f"# {line}")  # so that all of it can be saved as a plan


@dataclass(frozen=True)
class Found:
    """What a plan means for a job."""

    needs: Needs
    room: Room
    verdict: Verdict
    cuts: Mapping[str, Cut | Stages]
    """Its slices and its stages, where the plan has any."""
    timeline: Timeline | None
    """A step of its pipeline, by the costs of units."""

    def lines(self) -> list[str]:
        """In words."""
        said = [one for one in (self.verdict.refusal, self.verdict.warning) if one]
        cuts = [line for one in self.cuts.values() for line in str(one).splitlines()]
        return [f"memory per worker: {self.needs}", *said, *cuts, *self._schedule()]

    def to_dict(self) -> dict[str, Any]:
        """As JSON; bytes."""
        memory = {**asdict(self.needs), "total": self.needs.total, "free": self.room.device}
        found = {"memory": memory, **{name: one.to_dict() for name, one in self.cuts.items()}}
        if (line := self.timeline) is not None:
            found["schedule"] = {"table": str(line.table), "bubble": line.bubble, "held": line.held}
        return found

    def _schedule(self) -> list[str]:
        """The step as it is drawn, and what its workers wait and hold."""
        if (line := self.timeline) is None:
            return []
        idle, held = (", ".join(map(one, values)) for one, values in (("{:.0%}".format, line.bubble), (str, line.held)))
        return [
            f"a step of {line.table.micros} micro-batches by these costs (F forward, B backward, I and W its parts):",
            *str(line).splitlines(),
            f"rank by rank, idle for {idle} of the step, and micro-batches whose activations are held: {held}",
        ]


def look_at_job(file: Path, settings: list[str] | None, plan: Plan, workers: int) -> Found:
    """What a job needs and how its model would be cut, by a few passes of few samples in this process."""
    from cordee.diagnose.room import judge
    from cordee.runtime.resources import devices
    from cordee.train.cutting import cut_of_job
    from cordee.train.fitting import estimate_of_job
    from cordee.train.jobfile import load_job
    from cordee.train.staging import stages_of_job, timeline_of_job

    job = load_job(python_file(file), parse_settings(settings))
    cut = cut_of_job(job, plan.tensor, sequence=plan.sequence) if plan.tensor > 1 else None
    cuts: dict[str, Cut | Stages] = {} if cut is None else {"cut": cut}
    stages = stages_of_job(job, plan) if plan.pipeline > 1 else None
    cuts |= {"stages": stages} if stages is not None else {}
    needs, room = estimate_of_job(job, plan, workers, stages, devices(workers, "auto")[0])
    timeline = timeline_of_job(job, plan, workers, stages) if stages is not None else None
    return Found(needs, room, judge(needs, room, plan), cuts, timeline)


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
        table.add_row(f"  {key.name}={written(key.default)}", key.help, key.allowed)
    console = Console(highlight=False)
    console.print(table)
    console.print("Give them as --plan key=value,key=value or as a YAML file; what is not given keeps its default.")
