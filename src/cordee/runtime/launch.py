"""Start the workers of a run, watch over them, and end with them: everything that the launcher does on its host."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cordee.core import interrupts
from cordee.core.errors import (
    CordeeError,
    DivergedError,
    Interrupted,
    StorageError,
    UsageError,
    WaitedTooLong,
    WorkerFailed,
    WorkersLost,
    error_named,
)
from cordee.core.interrupts import Interrupts
from cordee.core.machine import usable_cores
from cordee.core.plan import Plan
from cordee.group.hub import Hub
from cordee.group.wire import Address
from cordee.runtime.engines.local import LocalEngine
from cordee.runtime.engines.seam import Engine, Seat, seats
from cordee.runtime.folder import former_settings, saved_step
from cordee.runtime.formats import settle
from cordee.runtime.recorder import Listener, Recorder
from cordee.runtime.relay import Output
from cordee.runtime.resources import Room, allot, devices
from cordee.runtime.spec import Target, WorkerSpec
from cordee.runtime.wording import COMMAND, Wording

LOOPBACK = "127.0.0.1"
DEADLINE_S = 300.0
"""How long workers wait for each other unless told otherwise."""
IDLE_S = 0.5
"""How long to wait for news before looking whether there is anything to do."""
END_S = 10.0
"""How long workers may take to end after everything is done."""
PART_S = 2.0
"""How long they may take after something failed, unless one has a checkpoint to write to its end."""
READ_S = 1.0
"""How long it may take to read what workers said before they ended."""
GOES_ON = (DivergedError, WorkerFailed, WorkersLost, WaitedTooLong, StorageError, Interrupted)
"""What a run may be gone on with after, from its last checkpoint."""
RECORDED = ("job", "worker", "step", "times", "usage", "plan", "result", "epoch", "checkpoint", "warning", "links")
"""What workers say for the record."""


@dataclass(frozen=True)
class Launch:
    """What to start on this host, and with what."""

    target: Target
    workers: int
    plan: Plan
    out: Path
    resume: bool = False
    threads: int | None = None
    cores: tuple[int, ...] | None = None
    """Pin the workers to these cores."""
    deadline_s: float = DEADLINE_S
    device: str = "auto"
    taken_over: dict[str, str] = field(default_factory=dict)
    """Settings of the run that is resumed, which were not given anew; the target holds them already."""
    wording: Wording = COMMAND
    output: Output = field(default_factory=Output)
    """Where the output of the workers goes, if not to our own."""

    def check(self) -> None:
        """Refuse what cannot be started, before anything is."""
        self.check_here()
        self.plan.check(self.workers)

    def check_here(self) -> None:
        """The part of it that concerns this host alone."""
        if self.deadline_s <= 0:
            raise UsageError(f"--deadline {self.deadline_s:g}: a number of seconds above 0 is needed")
        Room.here(self.cores or usable_cores()).check(self.workers, self.wording)
        allot(self.workers, self.cores or usable_cores(), threads=self.threads, pin=False, wording=self.wording)
        devices(self.workers, self.device, self.wording)

    def told(self, settings: Mapping[str, str]) -> Launch:
        """With settings that the run had before; what was given anew stays as it was given."""
        taken = {name: value for name, value in settings.items() if name not in self.target.settings}
        target = replace(self.target, settings={**taken, **self.target.settings})
        return replace(self, target=target, taken_over={**self.taken_over, **taken})

    def taking_over(self) -> Launch:
        """A resumed run goes on with the settings that its folder remembers."""
        if not self.resume or self.target.kind != "job":
            return self
        return self.told(former_settings(self.out))

    def recorder(self, listen: Listener) -> Recorder:
        """The record of this run, which holds its folder."""
        script = self.target.kind == "script"
        return Recorder(self.out, resume=self.resume, listen=listen, wording=self.wording, script=script)

    def begin(self, recorder: Recorder, workers: int) -> None:
        """Write down what starts, on `workers` workers of all hosts, and say what it took over."""
        target = self.target
        recorder.begin(
            target=target.path or target.kind,
            plan=self.plan,
            workers=workers,
            resume=self.resume,
            settings=target.settings,
        )
        if self.taken_over:
            taken = ", ".join(f"{name}={value}" for name, value in self.taken_over.items())
            recorder.event("warning", message=f"settings of the run: {taken}")

    def going_on(self) -> str:
        """How to go on with this run from its last checkpoint, in the user's own words; empty if there is none."""
        step = saved_step(self.out)
        if step is None or self.target.kind == "script" or not self.wording.way_on:
            return ""
        return f"to go on after step {step}: {self.again()}"

    def name_way_on(self, error: CordeeError) -> None:
        """Let what ended the run say how to go on with it, if there is a checkpoint."""
        if on := self.going_on():
            error.args = (f"{str(error).rstrip('.')}; {on}",)

    def again(self) -> str:
        """The command, or the call, that resumes this run as it was started. Its folder remembers the settings."""
        if self.wording.python:
            job = repr(self.target.path) if self.target.kind == "job" else "job"
            plan = f", plan={str(self.plan)!r}" if self.plan != Plan() else ""
            return f"cordee.train({job}, out={str(self.out)!r}, workers={self.workers}{plan}, resume=True)"
        words = ["cordee", "train", self.target.path, "--out", str(self.out), "--workers", str(self.workers)]
        words += ["--plan", str(self.plan)] if self.plan != Plan() else []
        words += ["--threads", str(self.threads)] if self.threads is not None else []
        words += ["--cores", ",".join(map(str, self.cores))] if self.cores is not None else []
        words += ["--deadline", f"{self.deadline_s:g}"] if self.deadline_s != DEADLINE_S else []
        words += ["--device", self.device] if self.device != "auto" else []
        return shlex.join([*words, *self.wording.more, "--resume"])

    def settle(self, say: Callable[[str], None]) -> None:
        """See that what the plan asks of the devices works here; before anything loads torch for the workers."""
        first = allot(self.workers, self.cores or usable_cores(), threads=self.threads, pin=False)[0]
        os.environ.update(settle(self.plan, devices(self.workers, self.device)[0], first.threads, say))

    def spec(self, hub: Address, interface: str, seat: Seat) -> WorkerSpec:
        """What a worker of this host needs to know; `interface` is the address that it binds to."""
        cores, local = self.cores or usable_cores(), seat.world.local_rank
        allotment = allot(self.workers, cores, threads=self.threads, pin=self.cores is not None)[local]
        return WorkerSpec(
            worker=seat.worker,
            target=self.target,
            plan=self.plan.to_dict(),
            out=str(self.out.absolute()),
            resume=self.resume,
            world=seat.world.to_env(),
            hub={"host": hub.host, "port": hub.port, "token": hub.token, "tls": hub.tls},
            interface=interface,
            threads=allotment.threads,
            cores=allotment.cores,
            folder=os.getcwd(),
            environment=dict(os.environ),
            deadline_s=self.deadline_s,
            device=devices(self.workers, self.device)[local],
            search=tuple(map(os.path.abspath, sys.path)) if self.target.kind == "sent" else (),
        )


def run(launch: Launch, listen: Listener, sent_job: bytes | None = None) -> dict[str, Any]:
    """Run to the end on this host; returns the result, or raises what ended it."""
    with interrupts.counted() as signals, contextlib.ExitStack() as ends:
        launch.check()
        launch.settle(lambda message: listen({"event": "warning", "message": message}))
        interrupts.check()
        recorder = launch.recorder(listen)
        ends.callback(recorder.close)
        hub = Hub(Address(LOOPBACK, 0, secrets.token_hex(32)), expected=launch.workers)
        ends.callback(hub.close)
        engine = LocalEngine(hub.notices, partial(launch.spec, hub.address, LOOPBACK), launch.output, sent_job)
        ends.callback(engine.close)

        def begin() -> None:
            launch.begin(recorder, launch.workers)
            engine.start(seats([launch.workers]))

        return Supervisor(launch, hub, engine, recorder).watch(begin, signals)


class Supervisor:
    """Reads notices until the run has ended one way or another."""

    def __init__(self, launch: Launch, hub: Hub, nursery: Engine, recorder: Recorder) -> None:
        """Nothing happens before `watch`."""
        self._launch, self._hub, self._nursery, self._recorder = launch, hub, nursery, recorder
        self._hosts: dict[int, str] = {}
        self._done: set[int] = set()
        self._begun = self._stepped = False
        """Whether the training is known to have begun, and a step of it to be done."""
        self._interrupts = 0
        self._error: CordeeError | None = None
        self._finished = False
        self._ends_by = 0.0
        """Until when workers are waited for when the run is over."""

    def watch(self, begin: Callable[[], None], signals: Interrupts) -> dict[str, Any]:
        """Start the workers by `begin`, and stay until all have ended; whatever ends the run is on its record."""
        signals.wake = lambda: self._hub.notices.put(("interrupt", -1, {}))
        try:
            interrupts.check()  # what came before that
            begin()
        except CordeeError as error:
            self._error = error
        while not self._finished and self._error is None:
            try:
                self._listen()
                self._recorder.flush()
            except StorageError as error:  # the record cannot be written
                self._error = self._error or error
        self._wind_up()
        return self._conclude()

    def _listen(self) -> None:
        """Take what has come, or wait a moment for it."""
        due = self._nursery.look()
        try:
            self._notice(*self._hub.notices.get(timeout=IDLE_S if due is None else due))
            while not self._finished and self._error is None:
                self._notice(*self._hub.notices.get_nowait())
        except queue.Empty:
            pass

    def _notice(self, kind: str, worker: int, content: dict[str, Any]) -> None:
        self._stepped = self._stepped or kind == "step"
        self._begun = self._begun or self._stepped or kind == "job"
        if kind == "joined":
            self._hosts[worker] = content["host"]
        elif kind == "finished":
            self._finished = True
        elif kind == "done":
            self._done.add(worker)
        elif kind == "failed":
            self._fail(worker, content)
        elif kind == "stopped":
            self._hub.lose(worker, "it was stopped, and evicted")
        elif kind == "exited" and worker not in self._done:
            self._hub.lose(worker, how_it_ended(content["status"]))
        elif kind == "lost":
            self._lost(worker, content)
        elif kind == "stuck":
            others = "; ".join(f"{name}: {at}" for name, at in content["others"].items())
            self._error = WaitedTooLong(
                f"worker {worker} on {self._hosts.get(worker, 'this host')} waited longer than "
                f"{self._launch.deadline_s:g} s ({content['awaited']}). Where the others were: {others or 'gone'}. "
                "If a step really takes so long, allow more with --deadline. If a worker has left its loop before the "
                "others, by break or return, let all leave it after the same step: s.wish_stop = True"
            )
        elif kind == "unborn":
            self._error = WorkersLost(
                f"worker {worker} could not be started: {content['reason']}. Take fewer workers "
                f"({self._launch.wording.option('workers')}), or raise the limit"
            )
        elif kind == "nursery_gone":
            self._error = WorkersLost("the process that starts workers was ended, and the workers with it")
        elif kind == "broken":
            self._error = CordeeError(f"a defect of Cordée, please report it: {content['message']}")
        elif kind == "interrupt":
            self._interrupt()
        elif kind != "look":  # which only wakes the loop
            self._recorder.notice(kind, worker, content)

    def _fail(self, worker: int, content: dict[str, Any]) -> None:
        host = self._hosts.get(worker, "")
        kind = error_named(content["error"])
        if kind is WorkerFailed:
            message = f"worker {worker} on {host} failed with {content['message']}"
            self._error = WorkerFailed(message, rank=worker, host=host, traceback=content["traceback"])
        else:
            self._error = kind(content["message"])

    def _lost(self, worker: int, content: dict[str, Any]) -> None:
        deadline = time.monotonic() + 0.1  # the exit status comes on another way and says more
        while self._nursery.exit_code(worker) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        status = self._nursery.exit_code(worker)
        reason = content["reason"] if status is None or "stopped" in content["reason"] else how_it_ended(status)
        host = content["host"] or self._hosts.get(worker, "")
        self._recorder.notice("lost", worker, {**content, "host": host, "reason": reason})
        if content["left"] == 0:
            self._error = WorkersLost(f"no worker is left; the last one, worker {worker}, was lost: {reason}")

    def _interrupt(self) -> None:
        self._interrupts += 1
        if not self._begun:
            self._error = Interrupted(interrupts.EARLY)  # nothing is worth a wait
        elif self._interrupts == 1:
            saved = "" if self._launch.target.kind == "script" else ", with a checkpoint"
            self._recorder.event("warning", message=f"stopping after this step{saved}; once more to stop at once")
            self._hub.ask_to_stop("interrupted")
        else:
            kept = "" if self._launch.target.kind == "script" else ", without a last checkpoint"
            self._error = Interrupted(f"stopped at once{kept}")

    def _wind_up(self) -> None:
        """Let the workers end, then see that they have."""
        if self._error is not None:
            self._hub.abort(str(self._error))
        self._ends_by = time.monotonic() + (END_S if self._error is None else PART_S)
        while not self._nursery.wait(max(0.0, min(0.1, self._ends_by - time.monotonic()))):
            self._hear_out()
            if time.monotonic() >= self._ends_by:
                break
        self._nursery.close()
        self._hub.hear_out(READ_S)
        self._hear_out()

    def _hear_out(self) -> None:
        """What workers still say belongs to the record; a worker that writes a checkpoint is given time for it."""
        while True:
            try:
                kind, worker, content = self._hub.notices.get_nowait()
            except queue.Empty:
                return
            if kind in RECORDED:
                self._stepped = self._stepped or kind == "step"
                with contextlib.suppress(StorageError):  # the disk may be what the run failed for
                    self._recorder.notice(kind, worker, content)
            elif kind == "saving" and not isinstance(self._error, Interrupted):
                self._ends_by = time.monotonic() + content["seconds"]
            elif kind == "interrupt" and self._error is not None:
                self._ends_by = 0.0

    def _what_was_saved(self) -> str:
        if self._launch.target.kind == "script":
            return "; what it had to save was up to the script"
        if (step := self._recorder.saved) in (None, saved_step(self._launch.out)):
            return " with a checkpoint"
        return f"; the checkpoint of step {step} is on the host of the worker that wrote it, in the folder given there"

    def _conclude(self) -> dict[str, Any]:
        if self._error is None and self._interrupts:
            self._error = Interrupted(f"stopped{self._what_was_saved()}")
        elif isinstance(self._error, Interrupted) and self._stepped and not self._begun:  # news of steps came late
            self._error = Interrupted("stopped at once, in the first steps")
        if isinstance(self._error, GOES_ON):
            self._launch.name_way_on(self._error)
        try:
            result = self._recorder.end(self._error)
        except StorageError as error:
            raise self._error or error from None
        if self._error is not None:
            raise self._error
        return result


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"its process ended with exit code {status}"
