"""`cordee scale` and `cordee join`: another number of workers for a run that trains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cordee.cli import options
from cordee.cli.report import find_run
from cordee.core.errors import UsageError
from cordee.core.text import plain

Run = Annotated[Path, typer.Argument(help="Folder of a run that trains on this host.", show_default=False)]
Count = Annotated[int, typer.Argument(help="How many workers it shall have.", show_default=False)]
Entered = Annotated[Path | None, typer.Argument(help="Folder of a run that trains on this host.", show_default=False)]
More = Annotated[int | None, typer.Option(help="How many more. Default: 1; of another host: its GPUs or cores.")]
Job = Annotated[Path | None, typer.Option(help="The job's file on this host. Default: where the first host has it.")]


def scale(run: Run, workers: Count) -> None:
    """Give a run that trains this number of workers: more are started, or some leave, between two steps."""
    _ask(run, "scale", workers)


def join(
    run: Entered = None,
    workers: More = None,
    rendezvous: options.Rendezvous = None,
    token_file: options.TokenFile = None,
    trusted_network: options.Trusted = False,
    job: Job = None,
    out: options.Out = None,
) -> None:
    """Add workers to a run that trains on this host, or this host to a run of several (with --rendezvous)."""
    if (run is None) == (rendezvous is None):
        raise UsageError("name the folder of a run on this host, or --rendezvous HOST:PORT of a run of several hosts")
    if run is not None:
        if job is not None or token_file is not None or trusted_network or out is not None:
            raise UsageError("--token-file, --trusted-network, --job and --out are for --rendezvous")
        _ask(run, "join", 1 if workers is None else workers)
        return
    from cordee.runtime.api import Options
    from cordee.runtime.spec import Target
    from cordee.runtime.start import enter
    from cordee.runtime.wording import Wording

    target = Target("job", "" if job is None else str(job))
    asked = Options(
        workers, out=out, rendezvous=rendezvous, nodes=2, token_file=token_file, trusted_network=trusted_network
    )
    enter(asked.entering(target, Wording()), lambda text: print(plain(f"cordee: {text}"), file=sys.stderr, flush=True))
    print("the run has ended")


def _ask(run: Path, what: str, workers: int) -> None:
    from cordee.group.messages import Command
    from cordee.runtime.commands import ask

    print(plain(ask(find_run(run), Command("scale" if what == "scale" else "join", workers))))
