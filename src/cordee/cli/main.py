"""`cordee`: the commands. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cordee.cli import audit, bench, data, deploy, doctor, members, options, plan, report, twin
from cordee.cli.usage import explain, find_misspelt, polish_help
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
    job: options.JobFile,
    workers: options.Workers = None,
    plan: options.PlanText = "auto",
    out: options.Out = None,
    resume: options.Resume = False,
    set_: options.Settings = None,
    threads: options.Threads = None,
    cores: options.Cores = None,
    deadline: options.Deadline = 300.0,
    device: options.Device = "auto",
    replace: options.Replace = False,
    rendezvous: options.Rendezvous = None,
    nodes: options.Nodes = None,
    token_file: options.TokenFile = None,
    trusted_network: options.Trusted = False,
    engine: options.Engine = None,
    engine_set: options.EngineSettings = None,
    dry_run: options.DryRun = False,
) -> None:
    """Train the job of a Python file."""
    from cordee.cli.start import start
    from cordee.runtime.api import Options
    from cordee.runtime.spec import Target

    target = Target("job", str(job), options.parse_settings(set_))
    meeting = (rendezvous, nodes, token_file, trusted_network)
    beyond = (engine, options.engine_settings(engine, engine_set, dry_run=dry_run))
    start(target, Options(workers, plan, out, resume, threads, cores, deadline, device, *meeting, replace, *beyond))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="Python script that opens cordee.session().", show_default=False)],
    workers: options.Workers = None,
    plan: options.PlanText = "auto",
    out: options.Out = None,
    threads: options.Threads = None,
    cores: options.Cores = None,
    deadline: options.Deadline = 300.0,
    device: options.Device = "auto",
    rendezvous: options.Rendezvous = None,
    nodes: options.Nodes = None,
    token_file: options.TokenFile = None,
    trusted_network: options.Trusted = False,
) -> None:
    """Run a script with a training loop of its own.

    Options that are not listed here, and everything behind `--`, are the script's.
    """
    from cordee.cli.start import start
    from cordee.runtime.api import Options
    from cordee.runtime.spec import Target

    known = [name for one in context.command.params for name in one.opts if name.startswith("--")]
    behind = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []  # the script's own, beyond doubt
    for given, near in find_misspelt(context.args[: len(context.args) - len(behind)], known):
        note = f"note: {given} is passed to {script}; did you mean {near}? What stands behind -- is the script's"
        print(plain(note), file=sys.stderr)
    target = Target("script", str(script), arguments=tuple(context.args))
    meeting = (rendezvous, nodes, token_file, trusted_network)
    start(target, Options(workers, plan, out, False, threads, cores, deadline, device, *meeting))


@app.command()
def warm(
    minutes: Annotated[float, typer.Option(help="End after so long without a run.")] = 30.0,
    stop: Annotated[bool, typer.Option("--stop", help="End it now; current runs are not touched.")] = False,
) -> None:
    """Keep a process ready from which workers start in milliseconds."""
    from cordee.runtime.engines.warm import connect_warm, start_warm, stop_warm

    if stop:
        gone = stop_warm()
        print("\n".join(f"warm: process {pid} has ended" for pid in gone) or "no warm server is running")
        return
    server = connect_warm()
    if server is not None:
        server.close()
        print("a warm server is already running")
        return
    print(f"warm: process {start_warm(minutes)} serves the next runs, until {minutes:g} minutes pass without one")


app.command()(members.scale)
app.command()(members.join)
app.command()(plan.plan)


@app.command()
def token(
    file: Annotated[Path | None, typer.Argument(help="Where to write it. Default: the user's own.")] = None,
) -> None:
    """Write the secret that the hosts of a run share; copy the file to each of them."""
    from cordee.group.token import default_token_file, write_token

    path = file or default_token_file()
    write_token(path)
    print(f"wrote {path}, readable by you alone; copy it to every host of the run")


app.command()(report.report)
app.command()(audit.audit)
app.command()(doctor.doctor)
app.add_typer(bench.app)
app.add_typer(data.app)
app.add_typer(deploy.app)
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
    command = polish_help(typer.main.get_command(app))
    try:
        with command.make_context("cordee", list(words)) as context:
            command.invoke(context)
        return 0
    except typer.Exit as end:
        return end.exit_code
    except KeyboardInterrupt:
        message, code = "interrupted", Interrupted.code
    except WorkerFailed as error:
        print(plain(error.traceback.rstrip()), file=sys.stderr)
        message, code = str(error), error.code
    except CordeeError as error:
        message, code = str(error), error.code
    except Exception as error:
        if not hasattr(error, "format_message"):  # by which typer's own are known, in all its versions
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is on the screen already
            return UsageError.code
        message, code = explain(error), UsageError.code
    print(plain(f"cordee: {message}"), file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
