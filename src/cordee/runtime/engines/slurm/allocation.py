"""Inside an allocation: coordinate from here, with a step of Slurm for the launcher of each host."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cordee.core import interrupts
from cordee.core.errors import CordeeError, Interrupted
from cordee.core.events import Listener, WarningEvent
from cordee.core.interpreter import python_module
from cordee.core.world import Env
from cordee.group.wire import LOOPBACK, own_address_towards
from cordee.runtime.engines.agent import LAST_LINES, Outcome
from cordee.runtime.engines.places import drive
from cordee.runtime.engines.slurm.settings import Settings, Spread
from cordee.runtime.engines.slurm.submit import say, submit
from cordee.runtime.folder import saved_step
from cordee.runtime.launch import Launch

if TYPE_CHECKING:
    from cordee.train.job import Job

END_S = 5.0
"""How long steps may take to end when they are told to."""
SIGNALS = 128
"""srun ends with this and the number of the signal that ended its task."""
ANY_PORT = 6818
"""Only to ask for the route to a host."""


def run(launch: Launch, settings: Settings, hear: Listener, job: Job | None) -> dict[str, Any]:
    """Submit a batch job, or run inside the allocation that this process is in."""
    env = os.environ
    if "SLURM_JOB_ID" not in env or settings.dry_run:
        return submit(launch, settings)
    names = say("scontrol", "show", "hostnames", env.get("SLURM_JOB_NODELIST", "")).split()
    names = names[: settings.nodes or None]  # fewer than asked, if the job was requeued after a host was lost
    launch = continuing(launch, env)
    with interrupts.counted() as signals:
        try:
            spread = Spread(wait=settings.wait, nodes=min(len(names), launch.workers))
            return drive(launch, hear, job, lambda counts: SlurmCluster(names, settings), spread)
        except Interrupted as error:
            if goes_back(signals.numbers, env, settings):
                requeue(env["SLURM_JOB_ID"], saved_step(launch.out), error, hear)
            raise


def requeue(job: str, step: int | None, error: Interrupted, hear: Listener) -> None:
    """Put the job back into the queue, and say so in place of the `error` that ended this start."""
    try:
        say("scontrol", "requeue", job)
    except CordeeError as refusal:
        hear(WarningEvent(f"job {job} could not be put back into the queue: {refusal}"))
        return
    goes_on = "begins anew" if step is None else f"goes on after step {step}"
    error.message, error.next_step = f"stopped, as the job's time ends or it is preempted: job {job} {goes_on}", ""


def continuing(launch: Launch, env: Env) -> Launch:
    """In a job that was requeued the run goes on where it stood, if it had begun."""
    if launch.resume or not int(env.get("SLURM_RESTART_COUNT", "0")) or saved_step(launch.out) is None:
        return launch
    return replace(launch, resume=True).taking_over()


def goes_back(signals: Sequence[int], env: Env, settings: Settings) -> bool:
    """Whether a run that was stopped goes back into the queue, by the signals that came to this process.

    SIGUSR1 is the notice that the batch script asks for. None: hosts were preempted, of which Slurm tells only the
    steps. Any other is a user's (scancel, Ctrl-C), or Slurm requeues the job by itself.
    """
    return settings.requeue and env.get("ENVIRONMENT") == "BATCH" and set(signals) <= {signal.SIGUSR1}


class SlurmCluster:
    """The hosts of an allocation, each of which is a place."""

    name = "slurm"
    advice = "look at what its steps print, or set wait= to more seconds"

    def __init__(self, names: Sequence[str], settings: Settings) -> None:
        """Nothing runs there yet."""
        self._names, self._settings = names, settings
        self.patience_s = settings.wait
        self._steps: dict[int, subprocess.Popen[bytes]] = {}
        self._turn = threading.Lock()
        self._closed = False
        self.host = own_address(names, os.environ.get("SLURMD_NODENAME", ""))

    def call(self, place: int, assignment: bytes) -> Outcome:
        """As a step of one task on that host."""
        node = self._names[place]
        with self._turn:
            if self._closed:
                return Outcome(0)
            step = self._steps[place] = subprocess.Popen(
                step_words(node, self._settings, os.environ),
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # srun would end its step at the first signal
            )
        assert step.stdin is not None and step.stderr is not None
        with contextlib.suppress(OSError):  # it has ended already, and says why
            step.stdin.write(assignment + b"\n")
            step.stdin.flush()
        last: deque[str] = deque(maxlen=LAST_LINES)
        for line in step.stderr:
            last.append(text := line.decode(errors="replace").rstrip())
            print(text, file=sys.stderr, flush=True)  # noqa: T201
        return outcome(step.wait(), node, list(last))

    def close(self) -> None:
        """End the steps that are left, and with them what runs there."""
        with self._turn:
            self._closed = True
        for step in self._steps.values():
            if step.poll() is None:
                step.terminate()
        deadline = time.monotonic() + END_S
        for step in self._steps.values():
            try:
                step.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:  # its host is gone, and Slurm has not seen that yet
                step.kill()
                step.wait()


def step_words(node: str, settings: Settings, env: Mapping[str, str]) -> list[str]:
    """The command for a step on a host: no secret is in it."""
    cpus = env.get("SLURM_CPUS_PER_TASK")  # which srun takes no more from there by itself
    return [
        "srun",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        *([f"--cpus-per-task={cpus}"] if cpus else []),
        "--overlap",
        "--mpi=none",
        "--export=ALL",
        "--job-name=cordee",
        *shlex.split(settings.srun),
        *python_module("cordee.runtime.engines.slurm.step", *(["requeue"] if settings.requeue else [])),
    ]


def outcome(code: int, node: str, said: list[str]) -> Outcome:
    """How a host has ended, by the exit code of its srun, and what was said last."""
    if any("Node failure" in line for line in said):  # then srun's own code is 0
        return Outcome(None, node, "Slurm has given up the node")
    by_signal = code > SIGNALS and code != Interrupted.code
    told = [line for line in said if not line.startswith("srun: ")] or said
    return Outcome(SIGNALS - code if by_signal else code, node, "\n".join(told))


def own_address(names: Sequence[str], here: str) -> str:
    """An address of this machine that all hosts reach; `here` is Slurm's name of it, if it is one of them."""
    if list(names) == [here]:
        return LOOPBACK
    other = next(name for name in names if name != here)
    said = say("scontrol", "show", "node", "--oneliner", other).split()
    address = next((word.partition("=")[2] for word in said if word.startswith("NodeAddr=")), other)
    return own_address_towards(address, ANY_PORT)
