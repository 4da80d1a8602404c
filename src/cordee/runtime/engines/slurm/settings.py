"""What is asked of Slurm, and the batch script that asks for it: a pure function from settings to text."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from cordee.core.errors import UsageError
from cordee.runtime.engines.places import Asked
from cordee.runtime.resources import spread

OPTIONS = ("partition", "account", "qos", "time", "constraint", "mem", "gpus_per_node", "gres", "exclude", "nodelist")
"""Settings that are options of sbatch by the same name."""
NOTE = "# Written by `cordee train --engine slurm`."


def asked(text: str) -> str:
    """The default of a setting that Slurm gets only if it is given, and its help."""
    return field(default="", metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """What is asked of Slurm."""

    nodes: int = field(default=0, metadata={"help": "hosts; default: 1, and inside an allocation all of its hosts"})
    partition: str = asked("as sbatch --partition")
    account: str = asked("as sbatch --account")
    qos: str = asked("as sbatch --qos")
    time: str = asked("time limit, as sbatch --time, such as 1:00:00")
    constraint: str = asked("features that hosts must have, as sbatch --constraint")
    mem: str = asked("memory per host, as sbatch --mem, such as 16G")
    gpus_per_node: str = asked("GPUs per host, as sbatch --gpus-per-node, such as 4 or a100:4")
    gres: str = asked("other resources per host, as sbatch --gres")
    exclude: str = asked("hosts that are not wanted, as sbatch --exclude")
    nodelist: str = asked("hosts that are wanted, as sbatch --nodelist")
    cpus_per_task: int = field(
        default=0, metadata={"help": "cores per host, for all of its workers; default: one per worker"}
    )
    name: str = asked("name of the job; default: that of the job's file")
    requeue: bool = field(
        default=True,
        metadata={
            "help": "whether the job goes back into the queue, and resumes, when its time ends or it is preempted"
        },
    )
    warn: int = field(
        default=60, metadata={"help": "seconds before the time limit when the run stops, with a checkpoint"}
    )
    setup: str = asked("shell commands before it starts, such as module load cuda")
    sbatch: str = asked("further options for sbatch, such as --mail-type=END")
    srun: str = asked("further options for srun")
    wait: float = field(default=300.0, metadata={"help": "seconds that hosts may take to come"})
    dry_run: bool = field(default=False, metadata={"help": "print the script, and submit nothing"})

    def __post_init__(self) -> None:
        """Refuse what cannot be; what a cluster has, Slurm says."""
        for name, least in (("nodes", 0), ("cpus_per_task", 0), ("warn", 0)):
            if getattr(self, name) < least:
                raise UsageError(
                    f"engine slurm: setting {name} was given {getattr(self, name)}; at least {least} is needed"
                )
        if self.wait <= 0:
            raise UsageError(f"engine slurm: setting wait was given {self.wait:g}; expected seconds above 0")
        for name in (*OPTIONS, "name", "sbatch", "srun", "setup"):
            value = getattr(self, name)
            if "\n" in value or (name in OPTIONS and len(value.split()) > 1):
                raise UsageError(f"engine slurm: setting {name} was given {value!r}; expected one word")


@dataclass(frozen=True)
class Spread(Asked):
    """Workers over a number of hosts, as evenly as it goes."""

    nodes: int = 1

    def counts(self, workers: int) -> list[int]:
        """How many workers each host has."""
        return spread(workers, self.nodes)


@dataclass(frozen=True)
class Submission:
    """What a script is written for."""

    command: tuple[str, ...]
    """What runs inside the allocation."""
    workers: int
    name: str
    folder: Path
    """The current one."""
    out: Path
    """The run's folder, where the script and its output lie."""
    trusted_network: bool = False


def script(settings: Settings, given: Submission) -> str:
    """The text of the batch script."""
    nodes = settings.nodes or 1
    most = spread(given.workers, nodes)[0]
    values = {name: getattr(settings, name) for name in OPTIONS}
    options = {
        "job-name": settings.name or given.name,
        **{name.replace("_", "-"): value for name, value in values.items() if value},
        "nodes": nodes,
        "ntasks-per-node": 1,  # the launcher of a host, which starts its workers
        "cpus-per-task": settings.cpus_per_task or most,
        "signal": f"B:USR1@{settings.warn}" if settings.warn else "",
        "chdir": str(given.folder),
        "output": f"{str(given.out).replace('%', '%%')}/slurm-%j.out",  # Slurm puts the job's number for %j
        "open-mode": "append",  # a job that was requeued writes on
    }
    # A host that is lost does not end the job: the others go on.
    flags = ["no-kill", "requeue" if settings.requeue else "no-requeue"]
    lines = [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in options.items() if value != ""]
    lines += [f"#SBATCH --{flag}" for flag in flags]
    lines += [f"#SBATCH {settings.sbatch}"] * bool(settings.sbatch)
    lines += [settings.setup] * bool(settings.setup)
    return "\n".join(["#!/bin/bash", NOTE, *lines, f"exec {shlex.join(given.command)}", ""])
