"""`cordee`: the commands. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cordee.cli import bench, twin
from cordee.cli.complain import complaint, misplaced
from cordee.cli.help import polished
from cordee.cli.settings import pairs
from cordee.core import interrupts
from cordee.core.errors import CordeeError, Interrupted, UsageError, WorkerFailed
from cordee.core.text import plain

app = typer.Typer(
    name="cordee",
    help="Train an ordinary PyTorch model on the machines you have, as one big machine would.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Workers = Annotated[int | None, typer.Option(help="Processes to train with. Default: one a GPU, else one a core.")]
PlanText = Annotated[
    str, typer.Option(metavar="<plan>", help="How to train: auto, a YAML file, or key=value,...; see `cordee plan`.")
]
Out = Annotated[
    Path | None, typer.Option(metavar="<folder>", help="Folder of the run. Default: a new one under runs/.")
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the run in --out and its settings, with any number of workers."),
]
Threads = Annotated[int | None, typer.Option(help="Threads a worker computes with. Default: cores / workers.")]
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
Deadline = Annotated[float, typer.Option(help="Seconds that workers wait for each other before giving up.")]


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Train an ordinary PyTorch model on the machines you have, as one big machine would."""
    if version:
        from cordee import __version__

        print(f"cordee {__version__}")
        raise typer.Exit
    if context.invoked_subcommand not in ("train", "run"):  # which count signals from their first line on
        interrupts.raise_at_once()


@app.command()
def train(
    job: Annotated[Path, typer.Argument(help="Python file that defines `job`.", show_default=False)],
    workers: Workers = None,
    plan: PlanText = "auto",
    out: Out = None,
    resume: Resume = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="<name=value>", help="For the job: an argument of job() or a field."),
    ] = None,
    threads: Threads = None,
    cores: Cores = None,
    deadline: Deadline = 300.0,
    device: Device = "auto",
    rendezvous: Rendezvous = None,
    nodes: Nodes = None,
    token_file: TokenFile = None,
    trusted_network: Trusted = False,
) -> None:
    """Train the job of a Python file."""
    from cordee.cli.start import Options, start
    from cordee.runtime.spec import Target

    target = Target("job", str(job), pairs(set_))
    meeting = (rendezvous, nodes, token_file, trusted_network)
    start(target, Options(workers, plan, out, resume, threads, cores, deadline, device, meeting))


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
    device: Device = "auto",
    rendezvous: Rendezvous = None,
    nodes: Nodes = None,
    token_file: TokenFile = None,
    trusted_network: Trusted = False,
) -> None:
    """Run a script with a training loop of its own.

    Options that are not listed here, and everything behind `--`, are the script's.
    """
    from cordee.cli.start import Options, start
    from cordee.runtime.spec import Target

    known = [name for one in context.command.params for name in one.opts if name.startswith("--")]
    behind = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []  # meant for the script, beyond doubt
    for given, near in misplaced(context.args[: len(context.args) - len(behind)], known):
        note = f"note: {given} is passed to {script}; did you mean {near}? What stands behind -- is the script's"
        print(plain(note), file=sys.stderr)
    target = Target("script", str(script), arguments=tuple(context.args))
    meeting = (rendezvous, nodes, token_file, trusted_network)
    start(target, Options(workers, plan, out, False, threads, cores, deadline, device, meeting))


@app.command()
def warm(
    minutes: Annotated[float, typer.Option(help="End after so long without a run.")] = 30.0,
    stop: Annotated[bool, typer.Option("--stop", help="End it now; runs that are going on are not touched.")] = False,
) -> None:
    """Keep a process ready from which workers start in milliseconds."""
    from cordee.runtime.engines.warm import connect_warm, start_warm, stop_warm

    if stop:
        gone = stop_warm()
        print("\n".join(f"warm: process {pid} has ended" for pid in gone) or "no warm server is there")
        return
    found = connect_warm()
    if found is not None:
        found.close()
        print("a warm server is there already")
        return
    print(f"warm: process {start_warm(minutes)} serves the next runs, until {minutes:g} minutes pass without one")


@app.command()
def plan(
    given: Annotated[
        str | None,
        typer.Argument(metavar="plan", help="auto, a YAML file, or key=value,...; nothing: list the keys."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Check it for so many workers.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead of YAML.")] = False,
) -> None:
    """List the keys of a plan, or check a plan and print it with all of them."""
    from cordee.cli.plan import plan

    plan(given, workers, as_json)


@app.command()
def token(
    file: Annotated[Path | None, typer.Argument(help="Where to write it. Default: the user's own.")] = None,
) -> None:
    """Write the secret that the hosts of a run share; copy the file to each of them."""
    from cordee.group.token import default_token_file, write_token

    path = file or default_token_file()
    write_token(path)
    print(f"wrote {path}, readable by you alone; copy it to every host of the run")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run; it may still be going on.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print it all as JSON, and write no report.html.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Also write a trace for Perfetto to this file.")] = None,
    steps: Annotated[str | None, typer.Option(help="Steps that the trace shows, as FIRST:LAST.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Also write event files for TensorBoard there.")] = None,
) -> None:
    """Show what became of a run, and write its report.html anew."""
    from cordee.cli.report import report

    report(run, as_json, trace, steps, tensorboard)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Do not measure number formats; show what is known.")] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Also check that a run can listen at this port.")
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Look at this machine: what helps a run, what hinders it, and what to do about it."""
    from cordee.cli.doctor import doctor

    doctor(as_json, quick, port, token_file)


app.add_typer(bench.app)
app.add_typer(twin.app)


def main() -> None:
    """The `cordee` command."""
    from cordee.runtime.streams import fill_closed, outlive_terminal

    interrupts.end_at_once()
    fill_closed()
    outlive_terminal()
    interrupts.leave(_run(sys.argv[1:]))


def _run(words: list[str]) -> int:
    """The exit code; every error is one line."""
    command = polished(typer.main.get_command(app))
    try:
        with command.make_context("cordee", list(words)) as context:
            command.invoke(context)
        return 0
    except typer.Exit as end:
        return end.exit_code
    except KeyboardInterrupt:
        said, code = "interrupted", Interrupted.code
    except WorkerFailed as error:
        print(plain(error.traceback.rstrip()), file=sys.stderr)
        said, code = str(error), error.code
    except CordeeError as error:
        said, code = str(error), error.code
    except Exception as error:
        if not hasattr(error, "format_message"):  # by which typer's own are known, in all its versions
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is on the screen already
            return UsageError.code
        said, code = complaint(error, words), UsageError.code
    print(plain(f"cordee: {said}"), file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
