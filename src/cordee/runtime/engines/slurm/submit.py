"""Outside of an allocation: write the batch script and submit it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cordee.core import damage
from cordee.core.errors import CordeeError, RendezvousError, SecurityError, UsageError
from cordee.core.interpreter import python_module
from cordee.runtime import folder
from cordee.runtime.engines.slurm.settings import Settings, Submission, script
from cordee.runtime.launch import Launch
from cordee.runtime.wording import COMMAND, Wording

SCRIPT = "slurm.sh"
SLURM_S = 120.0
"""How long a command of Slurm may take: it tries for a while to reach its controller."""


def submit(launch: Launch, settings: Settings) -> dict[str, Any]:
    """Submit the run as a batch job: what `hand_in` says."""
    given = submission(launch)
    if not settings.dry_run:
        launch.plan.check(launch.workers)
        folder.check(given.out, launch.resume, False, launch.wording)
    return hand_in(given, settings, launch.wording)


def hand_in(given: Submission, settings: Settings, wording: Wording = COMMAND) -> dict[str, Any]:
    """Submit a batch job: its number, and where it prints; or only the script, if that is asked for."""
    text = script(settings, given)
    if settings.dry_run:
        return {"script": text}
    if settings.nodes > 1 and not given.trusted_network:
        raise SecurityError(
            f"{settings.nodes} hosts: our own connections are encrypted, but gloo's carry gradients in the clear. If "
            f"the network between the hosts is trusted, say so: {wording.flag('trusted_network')}"
        )
    if shutil.which("sbatch") is None:
        raise UsageError(
            f"{wording.option('engine', 'slurm')}: there is no sbatch on this machine. Give the command where jobs are "
            "submitted, such as on the login node of a Slurm cluster"
        )
    was_there = given.out.exists()
    folder.make(given.out, wording)
    path = given.out / SCRIPT
    with damage.writing(path):
        path.write_text(text, encoding="utf-8")
    try:
        job = say("sbatch", "--parsable", str(path)).partition(";")[0]
    except CordeeError as error:
        path.unlink()
        if not was_there:
            with contextlib.suppress(OSError):
                given.out.rmdir()
        raise UsageError(f"Slurm does not take the job: {error}") from error
    return {"submitted": int(job), "output": str(given.out / f"slurm-{job}.out")}


def submission(launch: Launch) -> Submission:
    """What the batch script runs: the same command, which finds itself inside an allocation there."""
    if launch.target.kind != "job":
        raise UsageError(
            "engine slurm: a batch job needs a job's file, but this job was made in Python. Give cordee.train the path "
            "of a file, or call it inside an allocation (salloc)"
        )
    given = {name: value for name, value in launch.given.items() if name != "engine_settings"}
    settings = launch.given.get("engine_settings")
    if isinstance(settings, Mapping):
        given["engine_settings"] = {name: value for name, value in settings.items() if name != "dry_run"}
    given |= {"out": str(launch.out.absolute())} | ({"resume": True} if launch.resume else {})
    words = [word for name, value in given.items() for word in COMMAND.words(name, value)]
    words += [word for name, value in launch.target.settings.items() for word in ("--set", f"{name}={value}")]
    path = Path(launch.target.path).absolute()
    command = (*program(), "train", str(path), *words)
    return Submission(command, launch.workers, path.stem, Path.cwd(), launch.out.absolute(), launch.trusted_network)


def program() -> list[str]:
    """The `cordee` command of this environment."""
    command = Path(sys.executable).with_name("cordee")
    return [str(command)] if command.exists() else python_module("cordee")


def say(*words: str) -> str:
    """What a command of Slurm prints; if it fails, the error is what it says, in one line."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SLURM_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RendezvousError(f"{words[0]} could not be asked: {error}") from error
    if done.returncode != 0:
        lines = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if line.strip()]
        raise RendezvousError("; ".join(dict.fromkeys(lines)) or f"{words[0]} ended with code {done.returncode}")
    return done.stdout.strip()
