"""Options that several commands have, each declared once; a job's file and its `--set name=value`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cordee.core.errors import JobError, UsageError

JobFile = Annotated[Path, typer.Argument(help="Python file that defines `job`.", show_default=False)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="<name=value>", help="For the job: an argument of job() or a field."),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes to train with. Default: one per GPU, else one per core. 0: hold parameters only."),
]
PlanText = Annotated[
    str, typer.Option(metavar="<plan>", help="How to train: auto, a YAML file, or key=value,...; see `cordee plan`.")
]
Out = Annotated[
    Path | None, typer.Option(metavar="<folder>", help="Folder of the run. Default: a new one under runs/.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume the run in --out with its settings, on any number of workers.")
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Start another worker in the place of one that is lost; as replace=true.")
]
Threads = Annotated[int | None, typer.Option(help="Threads per worker. Default: cores / workers.")]
Cores = Annotated[str | None, typer.Option(metavar="<cores>", help="Pin the workers to these cores, such as 0-3,8.")]
Device = Annotated[str, typer.Option(metavar="<device>", help="auto, cpu or cuda.")]
Rendezvous = Annotated[
    str | None,
    typer.Option(metavar="<host:port>", help="Where several hosts meet; that host coordinates.", show_default=False),
]
Nodes = Annotated[
    int | None, typer.Option(help="Hosts of the run; give the same command on each of them. Needed for --rendezvous.")
]
TokenFile = Annotated[Path | None, typer.Option(metavar="<file>", help="The hosts' shared secret; see `cordee token`.")]
Trusted = Annotated[bool, typer.Option("--trusted-network", help="Let gloo carry gradients unencrypted between hosts.")]
Engine = Annotated[
    str | None,
    typer.Option(metavar="<engine>", help="Train where an engine, such as ray, gives the workers places."),
]
EngineSettings = Annotated[
    list[str] | None,
    typer.Option("--engine-set", metavar="<name=value>", help="For the engine: one of its settings."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Of --engine slurm: print the batch script, submit nothing.")]
Deadline = Annotated[float, typer.Option(help="Seconds that workers wait for each other before giving up.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


def python_file(path: Path) -> Path:
    """The file that was named, or an error that says what is there instead."""
    if path.is_dir():
        inside = sorted(one.name for one in path.glob("*.py"))[:3]
        hint = f"; it holds {', '.join(inside)}" if inside else ""
        raise JobError(f"{path.resolve()} is a folder: expected a Python file{hint}")
    if not path.is_file():
        raise JobError(f"there is no file {path.resolve()}: expected a Python file")
    return path


def engine_settings(engine: str | None, texts: Sequence[str] | None, *, dry_run: bool) -> dict[str, str] | None:
    """Those of `--engine-set`, and that nothing is to be submitted; None if there are none."""
    if dry_run and engine is None:
        raise UsageError("--dry-run prints the batch script of --engine slurm: give that too")
    return parse_settings(texts, "--engine-set") | ({"dry_run": "true"} if dry_run else {}) or None


def parse_settings(texts: Sequence[str] | None, option: str = "--set") -> dict[str, str]:
    """Names and values of all options of this kind; the last one of a name counts."""
    settings = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {text}: expected name=value")
        settings[name.strip()] = value
    return settings
