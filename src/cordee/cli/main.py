"""`cordee`: the commands. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from cordee.core.errors import CordeeError, UsageError, WorkerFailed

app = typer.Typer(
    name="cordee",
    help="Train an ordinary PyTorch model on the machines you have, as one big machine would.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Workers = Annotated[Optional[int], typer.Option(help="Processes to train with. Default: one a core.")]
PlanText = Annotated[str, typer.Option(help="How to train: auto, a YAML file, or key=value,...")]
Out = Annotated[Optional[Path], typer.Option(help="Folder of the run. Default: a new one under runs/.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, with any number of workers.")]
Threads = Annotated[Optional[int], typer.Option(help="Threads a worker computes with. Default: cores / workers.")]
Cores = Annotated[Optional[str], typer.Option(help="Pin the workers to these cores, such as 0-3,8.")]
Deadline = Annotated[float, typer.Option(help="Seconds that workers wait for each other before giving up.")]


@app.command()
def train(
    job: Annotated[Path, typer.Argument(help="Python file that defines `job`.", show_default=False)],
    workers: Workers = None,
    plan: PlanText = "auto",
    out: Out = None,
    resume: Resume = False,
    set_: Annotated[Optional[list[str]], typer.Option("--set", help="name=value for the job: an argument of job() or a field.")] = None,
    threads: Threads = None,
    cores: Cores = None,
    deadline: Deadline = 300.0,
) -> None:
    """Train the job of a Python file."""
    from cordee.runtime.spec import Target

    settings = dict(_pair(text) for text in set_ or [])
    _start(Target("job", str(job), settings), job, workers, plan, out, resume, threads, cores, deadline)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="Python script that opens cordee.session().", show_default=False)],
    workers: Workers = None,
    plan: PlanText = "auto",
    out: Out = None,
    threads: Threads = None,
    cores: Cores = None,
    deadline: Deadline = 300.0,
) -> None:
    """Run a script with a training loop of its own; arguments after its name are the script's."""
    from cordee.runtime.spec import Target

    target = Target("script", str(script), arguments=tuple(context.args))
    _start(target, script, workers, plan, out, False, threads, cores, deadline)


@app.command()
def warm(minutes: Annotated[float, typer.Option(help="End after so long without a run.")] = 30.0) -> None:
    """Keep a process ready from which workers start in milliseconds."""
    from cordee.runtime.nursery import connect_warm, start_warm

    found = connect_warm()
    if found is not None:
        found.close()
        print("a warm server is there already")
        return
    print(f"warm: process {start_warm(minutes)} serves the next runs, until {minutes:g} minutes pass without one")


def _start(
    target: object, path: Path, workers: int | None, plan: str, out: Path | None, resume: bool, threads: int | None,
    cores: str | None, deadline: float,
) -> None:
    from cordee.core.plan import Plan
    from cordee.runtime.api import default_folder, default_workers
    from cordee.runtime.launch import Launch, run
    from cordee.runtime.resources import parse_cores, usable_cores
    from cordee.runtime.spec import Target
    from cordee.watch.progress import Progress

    assert isinstance(target, Target)
    if not path.is_file():
        from cordee.core.errors import JobError

        raise JobError(f"there is no file {path.resolve()}: expected a Python file")
    if resume and out is None:
        raise UsageError("--resume needs --out, the folder of the run to go on with")
    count = workers or default_workers()
    folder = out or default_folder(path.stem)
    launch = Launch(
        target, count, Plan.parse(plan), folder, resume, threads, parse_cores(cores) if cores else None, deadline
    )
    progress = Progress()
    if count > len(usable_cores()):
        print(f"note: {count} workers share {len(usable_cores())} cores; it works, but no faster than with one a core", file=sys.stderr)
    try:
        result = run(launch, progress)
    finally:
        progress.close()
    _show(result, folder)


def _show(result: dict[str, object], folder: Path) -> None:
    for part in ("validation", "test"):
        metrics = result.get(part)
        if isinstance(metrics, dict) and metrics:
            print(f"{part}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    print(f"run: {folder}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: expected name=value")
    return name.strip(), value


def main() -> None:
    """The `cordee` command."""
    try:
        app()
    except WorkerFailed as error:
        print(error.traceback.rstrip(), file=sys.stderr)
        print(f"cordee: {error}", file=sys.stderr)
        sys.exit(error.code)
    except CordeeError as error:
        print(f"cordee: {error}", file=sys.stderr)
        sys.exit(error.code)


if __name__ == "__main__":
    main()
