"""`cordee twin`: a cluster emulated on this machine, to try a plan or a failure before it happens."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cordee.cli.options import AsJson, JobFile, Out
from cordee.core.errors import CordeeError, UsageError
from cordee.core.text import plain

if TYPE_CHECKING:
    from cordee.twin.twin import Twin

app = typer.Typer(name="twin", help="A cluster emulated on this machine.", no_args_is_help=True)

HOSTS_HELP = 'The hosts, such as "2 x cpu=0.75 link=100mbit, 1 x cpu=0.25 link=10mbit".'
Hosts = Annotated[str | None, typer.Option(help=HOSTS_HELP, show_default=False)]
Name = Annotated[str | None, typer.Option(help="Which twin. Default: the only one.", show_default=False)]
HostName = Annotated[str, typer.Argument(help="Name of a host, such as b.", show_default=False)]
Worker = Annotated[int, typer.Argument(min=0, help="Number of a worker, from 0.", show_default=False)]
RunFolder = Annotated[Path | None, typer.Option("--run", help="Folder of the run. Default: that of `twin run`.")]
Processes = Annotated[bool, typer.Option("--processes", help="Hosts that are mere processes: no links, no root.")]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    job: JobFile,
    hosts: Hosts = None,
    schedule: Annotated[str, typer.Option(help="Faults: a file, or such as `at step 30: cut b`.")] = "",
    seed: Annotated[int, typer.Option(help="Decides which worker `random` is in the schedule.")] = 0,
    out: Out = None,
    name: Annotated[str | None, typer.Option(help="A twin that is up. Default: a new one, removed at the end.")] = None,
    script: Annotated[bool, typer.Option("--script", help="It is a script with a loop of its own.")] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where the hosts meet, on the first of them.")] = 29400,
    processes: Processes = False,
) -> None:
    """Train a job on an emulated cluster.

    Options that are not listed here are those of `cordee train`; with --script those of `cordee run` and of the script,
    whose alone is what stands behind `--`.
    """
    from cordee.runtime.api import default_folder
    from cordee.runtime.folder import saved_step
    from cordee.twin.commands import RunRequest, check_options
    from cordee.twin.run import check_possible, run
    from cordee.twin.schedule import Schedule
    from cordee.twin.twin import chosen
    from cordee.watch.report import write_report

    if not job.is_file():
        raise UsageError(f"there is no file {job.resolve()}: expected a Python file")
    faults = Schedule.read(schedule)
    behind = sys.argv[sys.argv.index("--") + 1 :] if script and "--" in sys.argv else []
    options = context.args[: len(context.args) - len(behind)]
    check_options(options)
    folder = out or default_folder(job.stem)
    request = RunRequest("run" if script else "train", job, folder, tuple(options), port, tuple(behind))
    with chosen(hosts, name, processes, faults.check) as twin:
        check_possible(faults, twin)
        code = run(twin, request, faults, seed=seed, say=_say)
    if (folder / "report.html").is_file():  # what was put on record after the hosts had written it belongs there too
        write_report(folder)
    step = None if script else saved_step(folder)
    if step is not None and code not in (0, UsageError.code):  # the hosts' own commands are gone with their names
        _say(f"to go on after step {step}: the same `cordee twin run` with --out {folder} --resume")
    raise typer.Exit(code if code >= 0 else 128 - code)  # as a shell has it of a process that a signal ended


@app.command()
def up(
    hosts: Annotated[str, typer.Option(help=HOSTS_HELP, show_default=False)],
    name: Annotated[str, typer.Option(help="What to call it.")] = "twin",
    processes: Processes = False,
) -> None:
    """Make a twin that stays until `cordee twin down`."""
    from cordee.twin.cluster import Cluster
    from cordee.twin.registry import Registry
    from cordee.twin.twin import Twin

    twin = Twin.up(Cluster.parse(hosts), Registry(), name=name, stays=True, processes=processes)
    print(f"twin {twin.name} is up: {twin.cluster}")


@app.command(context_settings={"allow_interspersed_args": False})
def exec(
    host: HostName,
    command: Annotated[list[str], typer.Argument(help="The command, and its words.", show_default=False)],
    name: Name = None,
) -> None:
    """Run a command on a host; put --name before the host."""
    from cordee.twin.twin import Twin

    words = Twin.find(name).command(host, command, tied=False)
    sys.stdout.flush()
    os.execv(words[0], words)  # in our place: signals, the terminal and the exit code are the command's own


@app.command(name="set")
def set_(
    host: HostName,
    settings: Annotated[list[str], typer.Argument(help="link=10mbit, cpu=0.1, or both.", show_default=False)],
    name: Name = None,
) -> None:
    """Change a host's link or CPU share while it works; `max` takes a limit away."""
    print(_do(f"set {host} {' '.join(settings)}", name).cluster.host(host))


@app.command()
def cut(host: HostName, name: Name = None) -> None:
    """Pull a host's cable."""
    _do(f"cut {host}", name)


@app.command()
def mend(host: HostName, name: Name = None) -> None:
    """Put a host's cable back."""
    _do(f"mend {host}", name)


@app.command()
def kill(worker: Worker, name: Name = None, run: RunFolder = None) -> None:
    """Kill a worker of the current run, with SIGKILL."""
    _do(f"kill worker {worker}", name, run)


@app.command()
def pause(worker: Worker, name: Name = None, run: RunFolder = None) -> None:
    """Stop a worker without ending it (SIGSTOP)."""
    _do(f"pause worker {worker}", name, run)


@app.command()
def resume(worker: Worker, name: Name = None, run: RunFolder = None) -> None:
    """Let a paused worker continue (SIGCONT)."""
    _do(f"resume worker {worker}", name, run)


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="Which twin. Default: the only one.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All twins of this user.")] = False,
) -> None:
    """End everything that runs on a twin, and remove it."""
    from cordee.twin.registry import Registry
    from cordee.twin.twin import Twin

    if name is not None and everything:
        raise UsageError(f"{name} and --all: expected one of them")
    errors = []
    for twin in Twin.all(Registry()) if everything else [Twin.find(name)]:
        try:
            twin.down()
            print(f"twin {twin.name} is gone")
        except CordeeError as error:  # the others go nevertheless
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else CordeeError("; ".join(map(str, errors)))


@app.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """The twins that are up."""
    from cordee.twin.registry import Registry
    from cordee.twin.twin import Twin

    twins = Twin.all(Registry())
    if as_json:
        print(json.dumps([{"name": twin.name, **asdict(twin.cluster)} for twin in twins]))
        return
    for twin in twins:
        print(f"{twin.name}: {twin.cluster}")
    if not twins:
        print("there is no twin; make one with `cordee twin up --hosts ...`")


def _do(action: str, name: str | None, folder: Path | None = None) -> Twin:
    """Do to the twin of this name what a statement of a schedule would do."""
    from cordee.twin.faults import do_by_hand
    from cordee.twin.schedule import Action
    from cordee.twin.twin import Twin

    twin = Twin.find(name)
    do_by_hand(twin, Action.parse(action), folder, _say)
    return twin


def _say(message: str) -> None:
    print(plain(f"twin: {message}"), file=sys.stderr, flush=True)
