"""A worker's life: take its place, run the user's code, say how it ended."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cordee.core import heap
from cordee.core.errors import CordeeError, JobError, UsageError, WorkerFailed, kind_of_error
from cordee.core.events import WarningEvent
from cordee.core.interpreter import search_in, shadowed
from cordee.core.world import World
from cordee.feed.reading import begin_others
from cordee.group.channel import Channel
from cordee.group.messages import FIRST_SERVER, Failed, Lose
from cordee.group.team import Team
from cordee.runtime.holding import hold
from cordee.runtime.join import Entry, set_current
from cordee.runtime.sent import receive_job
from cordee.runtime.spec import WorkerSpec
from cordee.train.copying import Memory
from cordee.train.job import Job
from cordee.train.jobfile import load_job
from cordee.train.loop import run_job
from cordee.train.newcomers import come_in
from cordee.train.trial import run_trial


def work(spec: WorkerSpec, sent_job: int | None) -> int:
    """Everything from the fork to the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher hears Ctrl-C and asks us to stop in good order
    os.environ.clear()
    os.environ.update(spec.environment)
    os.chdir(spec.folder)
    _use(spec)
    if spec.worker >= FIRST_SERVER:
        return hold(spec)
    channel = Channel(spec.hub, spec.worker, socket.gethostname(), joins=spec.joins)
    entry = Entry(World.from_env(), channel, spec.device, spec.interface, spec.plan, spec.deadline_s)
    set_current(entry)
    try:
        _run(spec, entry, sent_job)
    except SystemExit as error:
        if error.code not in (None, 0):
            return _fail(channel, JobError(f"the script ended with sys.exit({error.code!r})"))
    except BaseException as error:
        return _fail(channel, error)
    channel.close()
    return 0


def _use(spec: WorkerSpec) -> None:
    """Keep to the cores and threads that this worker was given."""
    if spec.cores:
        os.sched_setaffinity(0, spec.cores)
    heap.keep_later()
    os.environ["OMP_NUM_THREADS"] = str(spec.threads)
    torch.set_num_threads(spec.threads)
    torch.set_num_interop_threads(1)
    if spec.device.startswith("cuda"):
        torch.cuda.set_device(spec.device)


def _run(spec: WorkerSpec, entry: Entry, sent_job: int | None) -> None:
    target = spec.target
    sys.argv = [target.path, *target.arguments]  # the script must not see those of the fork server
    if target.kind == "script":
        search_in([Path(target.path).resolve().parent])
        begin_others(0)  # what it draws without a seed, to split data for instance, is the same on all workers
        left = _run_script(target.path)
        _see(left, spec, team := entry.meet())
        while not team.finish():
            pass
        return
    job = receive_job(sent_job) if sent_job is not None else _load(Path(target.path), target.settings)
    stepper = entry.assemble(seed=job.seed)
    if target.trial is not None:
        run_trial(job, stepper, out=Path(spec.out), steps=target.trial.steps, batch_times=target.trial.batch_times)
    else:
        receive = partial(come_in, job, stepper.team) if spec.joins else None
        memory = Memory(Path(spec.memory), spec.keeper) if spec.memory else None
        run_job(job, stepper, out=Path(spec.out), resume=spec.resume, memory=memory, receive=receive)


def _see(left: dict[str, Any], spec: WorkerSpec, team: Team) -> None:
    """A script that opened no session was not trained, though it may have done something else."""
    if team.position:
        return
    path = spec.target.path
    if isinstance(left.get("job"), Job) or callable(left.get("job")):
        raise UsageError(
            f"{path} opened no cordee.session() and defines `job`, so it is a job: use cordee train {path}"
        )
    if spec.worker == 0:
        team.channel.post(WarningEvent(f"{path} opened no cordee.session(); every worker ran it alone"))


def _run_script(path: str) -> dict[str, Any]:
    """The names that the script leaves; a file that cannot be read as Python is told with the line."""
    try:
        return runpy.run_path(path, run_name="__main__")
    except SyntaxError as error:
        if error.filename is None or not Path(error.filename).is_file():
            raise  # of a text that the script itself had compiled
        raise JobError(f"{Path(error.filename).resolve()}, line {error.lineno}: {error.msg}") from error


def _load(path: Path, settings: dict[str, str]) -> Job:
    """The file's job; what its own lines raise is told with the line."""
    try:
        return load_job(path, settings)
    except CordeeError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame for frame in frames if Path(frame.filename).resolve() == path.resolve()]
        where = f"{path}, line {lines[-1].lineno}" if lines else str(path)
        hint = shadowed(error, path.resolve().parent)
        raise JobError(f"{where}: {type(error).__name__}: {error}{hint}") from error


def _fail(channel: Channel, error: BaseException) -> int:
    """Tell the launcher what happened; it speaks to the user, once."""
    if isinstance(error, CordeeError):
        code, failed = error.code, Failed(kind_of_error(error).__name__, error.message, next_step=error.next_step)
    else:
        notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
        notes += shadowed(error, Path(sys.argv[0]).resolve().parent)
        trace = "".join(traceback.format_exception(type(error), error, _user_part(error)))
        text = f"{type(error).__name__}: {error}{notes}"
        code, failed = WorkerFailed.code, Failed(WorkerFailed.__name__, text, trace)
    if channel.joining:  # the others go on without it
        channel.farewell = True
        channel.send(Lose(channel.worker, str(error) if isinstance(error, CordeeError) else failed.text))
    else:
        channel.send(failed)
        channel.part()
    channel.close()
    return code


def _user_part(error: BaseException) -> Any:
    """The traceback from the first frame that is not ours."""
    here = str(Path(__file__).resolve().parents[1])
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (file.startswith(here) or "importlib" in file or "runpy" in file):
            break
        trace = trace.tb_next
    return trace
