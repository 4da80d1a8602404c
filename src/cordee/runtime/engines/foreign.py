"""A job under another launcher (torchrun, mpirun, Slurm): this process is one worker of it."""

from __future__ import annotations

import contextlib
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cordee.core import heap
from cordee.core.errors import CordeeError, Interrupted, UsageError
from cordee.core.events import Listener, WarningEvent
from cordee.core.world import World
from cordee.runtime.coordinator.controller import GOES_ON
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.folder import saved_step
from cordee.runtime.launch import Launch, check_deadline
from cordee.runtime.recorder import Recorder

if TYPE_CHECKING:
    from cordee.train.job import Job


KEPT_S = 10.0
"""How long the last words may take to be written down."""


def run_foreign(launch: Launch, world: World, listen: Listener, made: Job | None = None) -> dict[str, Any]:
    """This process's part of the run; every rank returns the result."""
    from cordee.runtime.join import enter
    from cordee.train.jobfile import load_job
    from cordee.train.loop import run_job

    if launch.target.kind == "script":
        raise UsageError(
            f"{world.source} started this process already: give it the script itself, without `cordee run`"
        )
    check_deadline(launch.deadline_s, launch.wording)
    launch.plan.check(world.size)
    for given, wanted in (("replace=true", launch.plan.replace), ("recover=", launch.plan.recover != "ask")):
        if wanted:
            raise UsageError(
                f"{given} needs workers that Cordée starts, but {world.source} started these: take it out of the "
                "plan, or use cordee train"
            )
    heap.keep_later()
    launch.check_formats(lambda message: listen(WarningEvent(message)))
    with contextlib.ExitStack() as ends:
        recorder = Recorder(launch, listen) if world.rank == 0 else None
        if recorder is not None:
            ends.callback(recorder.close)
        entry = enter(
            world,
            deadline_s=launch.deadline_s,
            plan=launch.plan,
            device=launch.device,
            record=recorder is not None,
            settings=launch.taken_over,
        )
        team, keeper, ended = entry.meet(), None, threading.Event()
        # Rank 0 knows the run's folder, which others may not see.
        launch = launch.told(team.channel.settings)
        if recorder is not None and entry.hub is not None:
            recorder.begin(world.size, world.nodes)
            keeper = ends.enter_context(ThreadPoolExecutor(1, "cordee-keeper")).submit(
                _keep, entry.hub, recorder, ended
            )
            ends.callback(ended.set)
        error: CordeeError | None = None
        result: dict[str, Any] = {}
        try:
            job = made or load_job(Path(launch.target.path), launch.target.settings)
            outcome = run_job(job, entry.assemble(seed=job.seed), out=launch.out, resume=launch.resume)
            result = outcome.result
            team.close()
            if outcome.interrupted:
                error = Interrupted("stopped with a checkpoint")
        except BaseException as raised:
            team.channel.part()
            team.channel.close()  # before the hub, whose end it would take for a lost launcher
            if not isinstance(raised, CordeeError):
                raise
            error = raised
        if isinstance(error, GOES_ON) and saved_step(launch.out) is not None:
            name, out = launch.wording.flag("resume"), launch.wording.option("out", str(launch.out))
            error.next_step = f"to go on: start it again with {name} and {out}"
        if keeper is not None and recorder is not None and entry.hub is not None:
            ended.set()
            failed = keeper.exception(KEPT_S)
            entry.hub.close()
            if failed is not None:
                raise error or failed
            result = recorder.end(error)
        if error is not None:
            raise error
        return result


def _keep(hub: Hub, recorder: Recorder, ended: threading.Event) -> None:
    """On a thread of rank 0: write down what the hub hears, to the last word after the end."""
    while True:
        try:
            recorder.notice(*hub.notices.get(timeout=0.1))
        except queue.Empty:
            recorder.flush()
            if ended.is_set():
                return
