"""`cordee twin`: a cluster emulated on this machine, to try a plan or a failure before it happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cordee.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from cordee.twin.twin import Twin

app = typer.Typer(name="twin", help="A cluster emulated on this machine.", no_args_is_help=True)

HOSTS_HELP = 'The hosts, such as "2 x cpu=0.75 link=100mbit, 1 x cpu=0.25 link=10mbit".'
Hosts = Annotated[str | None, typer.Option(help=HOSTS_HELP, show_default=False)]
Name = Annotated[str | None, typer.Option(help="Which twin. Default: the only one.", show_default=False)]
HostName = Annotated[str, typer.Argument(help="Name of a host: a, b, c, ...", show_default=False)]
Worker = Annotated[int, typer.Argument(help="Number of a worker, from 0.", show_default=False)]
RunFolder = Annotated[Path | None, typer.Option("--run", help="Folder of the run. Default: that of `twin run`.")]
Processes = Annotated[bool, typer.Option("--processes", help="Hosts that are mere processes: no links, no root.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.callback()
def about() -> None:
    """A cluster emulated on this machine."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    job: Annotated[Path, typer.Argument(help="Python file that defines `job`.", show_default=False)],
    hosts: Hosts = None,
    schedule: Annotated[str, typer.Option(help="Faults: a file, or such as `at step 30: cut b`.")] = "",
    seed: Annotated[int, typer.Option(help="Decides who `random` is in the schedule.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: a new one under runs/.")] = None,
    name: Annotated[str | None, typer.Option(help="A twin that is up. Default: a new one, removed at the end.")] = None,
    script: Annotated[bool, typer.Option("--script", help="It is a script with a loop of its own.")] = False,
    port: Annotated[int, typer.Option(help="Where the hosts meet, on the first of them.")] = 29400,
    processes: Processes = False,
) -> None:
    """Train a job on an emulated cluster.

    Options that are not listed here are those of `cordee train`; with --script those of `cordee run` and of the script.
    """
    from cordee.runtime.api import default_folder
    from cordee.twin.cluster import Cluster
    from cordee.twin.run import Asked, check, check_possible, run
    from cordee.twin.schedule import Schedule

    if not job.is_file():
        raise UsageError(f"there is no file {job.resolve()}: expected a Python file")
    faults = Schedule.parse(_text(schedule))
    if hosts is not None:
        check(faults, Cluster.parse(hosts))
    asked = Asked("run" if script else "train", job, out or default_folder(job.stem), tuple(context.args), port)
    with _chosen(hosts, name, processes) as twin:
        check(faults, twin.cluster)
        check_possible(faults, twin)
        code = run(twin, asked, faults, seed=seed, say=_say)
    raise typer.Exit(_exit_code(code))


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
    done = subprocess.run(_found(name).command(host, command), check=False)
    raise typer.Exit(_exit_code(done.returncode))


@app.command(name="set")
def set_(
    host: HostName,
    settings: Annotated[list[str], typer.Argument(help="link=10mbit, cpu=0.1, or both.", show_default=False)],
    name: Name = None,
) -> None:
    """Change a host's link or CPU share while it works; `max` takes a limit away."""
    from cordee.twin.cluster import read_setting

    pairs = [text.partition("=") for text in settings]
    for key, equals, _ in pairs:
        if not equals:
            raise UsageError(f"{key!r} is not key=value; expected such as link=10mbit or cpu=0.1")
    twin = _found(name)
    twin.set(host, {key: read_setting(key, value) for key, _, value in pairs})
    print(twin.cluster.host(host))


@app.command()
def cut(host: HostName, name: Name = None) -> None:
    """Pull a host's cable."""
    _found(name).cut(host)


@app.command()
def mend(host: HostName, name: Name = None) -> None:
    """Put a host's cable back."""
    _found(name).mend(host)


@app.command()
def kill(worker: Worker, name: Name = None, run: RunFolder = None) -> None:
    """Kill a worker of the run that goes on there, with SIGKILL."""
    _signal("kill", worker, name, run)


@app.command()
def pause(worker: Worker, name: Name = None, run: RunFolder = None) -> None:
    """Stop a worker without ending it (SIGSTOP)."""
    _signal("pause", worker, name, run)


@app.command()
def resume(worker: Worker, name: Name = None, run: RunFolder = None) -> None:
    """Let a paused worker go on (SIGCONT)."""
    _signal("resume", worker, name, run)


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="Which twin. Default: the only one.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All twins of this user.")] = False,
) -> None:
    """End everything that runs on a twin, and remove it."""
    from cordee.twin.registry import Registry
    from cordee.twin.twin import Twin

    registry = Registry()
    twins = [Twin(entry, registry) for entry in registry.entries()] if everything else [_found(name)]
    for twin in twins:
        twin.down()
        print(f"twin {twin.name} is gone")


@app.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """The twins that are up."""
    from cordee.twin.registry import Registry
    from cordee.twin.twin import sweep

    registry = Registry()
    with registry.locked():
        sweep(registry)
        entries = registry.entries()
    if as_json:
        print(json.dumps([{"name": entry.name, "hosts": entry.cluster.to_dicts()} for entry in entries]))
        return
    for entry in entries:
        print(f"{entry.name}: {entry.cluster}")
    if not entries:
        print("there is no twin; make one with `cordee twin up --hosts ...`")


@app.command()
def probe(hosts: Hosts = None, name: Name = None, as_json: AsJson = False) -> None:
    """Measure speed and latency of all links, both ways at once, and of an all-reduce."""
    from cordee.twin.probe import probe, table

    with _chosen(hosts, name, processes=False) as twin:
        found = probe(twin)
        print(json.dumps(found) if as_json else table(found, twin.cluster))


def _found(name: str | None) -> Twin:
    from cordee.twin.registry import Registry
    from cordee.twin.twin import Twin, sweep

    registry = Registry()
    with registry.locked():
        sweep(registry)
        return Twin(registry.find(name), registry)


@contextmanager
def _chosen(hosts: str | None, name: str | None, processes: bool) -> Iterator[Twin]:
    """A twin that is up, or a new one for as long as this lasts."""
    from cordee.twin.cluster import Cluster
    from cordee.twin.registry import Registry
    from cordee.twin.twin import Twin

    if hosts is None:
        yield _found(name)
        return
    if name is not None:
        raise UsageError("--hosts makes a new twin, --name takes one that is up: give one of them")
    twin = Twin.up(Cluster.parse(hosts), Registry(), processes=processes)
    try:
        yield twin
    finally:
        twin.down()


def _signal(kind: Literal["kill", "pause", "resume"], worker: int, name: str | None, folder: Path | None) -> None:
    from cordee.twin.run import Faults, seen_of
    from cordee.twin.schedule import Signal

    twin = _found(name)
    Faults(twin, seen_of(twin, folder), 0, _say).do(Signal(kind, worker))


def _text(schedule: str) -> str:
    """What a file of this name says, if there is one; otherwise it is the schedule."""
    if not os.path.isfile(schedule):  # unlike a Path's, it takes a text that is too long to be a name
        return schedule
    try:
        return Path(schedule).read_text()
    except (OSError, ValueError) as error:
        raise UsageError(f"--schedule {schedule}: it cannot be read as text ({error})") from error


def _exit_code(code: int) -> int:
    """As a shell has it: a process that a signal ended has 128 more than its number."""
    return code if code >= 0 else 128 - code


def _say(message: str) -> None:
    print(f"twin: {message}", file=sys.stderr, flush=True)
