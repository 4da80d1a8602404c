"""Start the workers of a run, watch over them, and end with them: everything that the launcher does on its host."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cordee.core.errors import (
    CordeeError,
    Interrupted,
    UsageError,
    WaitedTooLong,
    WorkerFailed,
    WorkersLost,
    error_named,
)
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.group.hub import Hub
from cordee.group.wire import Address
from cordee.runtime.formats import settle
from cordee.runtime.nursery import Nursery
from cordee.runtime.recorder import Listener, Recorder
from cordee.runtime.resources import allot, devices, usable_cores
from cordee.runtime.spec import Target, WorkerSpec

IDLE_S = 0.5
"""How long to wait for news before looking whether there is anything to do."""
END_S = 10.0
"""How long workers may take to end after everything is done."""
RECORDED = ("job", "worker", "step", "times", "usage", "result", "epoch", "checkpoint", "warning")
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
    deadline_s: float = 300.0
    device: str = "auto"

    def check(self) -> None:
        """Refuse what cannot be started, before anything is."""
        if self.deadline_s <= 0:
            raise UsageError(f"--deadline {self.deadline_s:g}: a number of seconds above 0 is needed")
        allot(self.workers, self.cores or usable_cores(), threads=self.threads, pin=False)
        devices(self.workers, self.device)
        self.plan.check(self.workers)

    def settle(self, say: Callable[[str], None]) -> None:
        """See that what the plan asks of the devices works here; before anything loads torch for the workers."""
        first = allot(self.workers, self.cores or usable_cores(), threads=self.threads, pin=False)[0]
        os.environ.update(settle(self.plan, devices(self.workers, self.device)[0], first.threads, say))

    def specs(
        self, hub: Address, *, first: int = 0, total: int | None = None, interface: str = "127.0.0.1"
    ) -> list[WorkerSpec]:
        """One spec a worker; worker ids of this host begin at `first` of `total`."""
        total = self.workers if total is None else total
        allotments = allot(self.workers, self.cores or usable_cores(), threads=self.threads, pin=self.cores is not None)
        on = devices(self.workers, self.device)
        specs = []
        for local, allotment in enumerate(allotments):
            world = World(rank=first + local, size=total, local_rank=local, local_size=self.workers, source="cordee")
            specs.append(
                WorkerSpec(
                    worker=first + local,
                    target=self.target,
                    plan=self.plan.to_dict(),
                    out=str(self.out.absolute()),
                    resume=self.resume,
                    world=world.to_env(),
                    hub={"host": hub.host, "port": hub.port, "token": hub.token, "tls": hub.tls},
                    interface=interface,
                    threads=allotment.threads,
                    cores=allotment.cores,
                    folder=os.getcwd(),
                    environment=dict(os.environ),
                    deadline_s=self.deadline_s,
                    device=on[local],
                )
            )
        return specs


def run(launch: Launch, listen: Listener, sent_job: bytes | None = None) -> dict[str, Any]:
    """Run to the end on this host; returns the result, or raises what ended it."""
    launch.check()
    launch.settle(lambda message: listen({"event": "warning", "message": message}))
    recorder = Recorder(launch.out, resume=launch.resume, listen=listen)
    hub = Hub(Address("127.0.0.1", 0, secrets.token_hex(32)), expected=launch.workers)
    try:
        nursery = Nursery(hub.notices)
        try:
            recorder.begin(
                target=launch.target.path or launch.target.kind,
                plan=launch.plan,
                workers=launch.workers,
                resume=launch.resume,
            )
            for spec in launch.specs(hub.address):
                with _private_file(sent_job) as descriptor:
                    nursery.start(spec, descriptor)
            return Supervisor(launch, hub, nursery, recorder).watch()
        finally:
            nursery.close()
    finally:
        hub.close()


class Supervisor:
    """Reads notices until the run has ended one way or another."""

    def __init__(self, launch: Launch, hub: Hub, nursery: Nursery, recorder: Recorder) -> None:
        """Nothing happens before `watch`."""
        self._launch, self._hub, self._nursery, self._recorder = launch, hub, nursery, recorder
        self._hosts: dict[int, str] = {}
        self._done: set[int] = set()
        self._interrupts = 0
        self._error: CordeeError | None = None
        self._finished = False

    def watch(self) -> dict[str, Any]:
        """Until all workers have ended."""
        # A handler runs between any two lines of ours, so it only leaves a word.
        with _signals(lambda: self._hub.notices.put(("interrupt", -1, {}))):
            while not self._finished and self._error is None:
                due = self._nursery.look()
                try:
                    self._notice(*self._hub.notices.get(timeout=IDLE_S if due is None else due))
                    while not self._finished and self._error is None:
                        self._notice(*self._hub.notices.get_nowait())
                except queue.Empty:
                    pass
                except KeyboardInterrupt:
                    self._interrupt()
                self._recorder.flush()
            self._wind_up()
        return self._conclude()

    def _notice(self, kind: str, worker: int, content: dict[str, Any]) -> None:
        if kind == "joined":
            self._hosts[worker] = content["host"]
        elif kind == "finished":
            self._finished = True
        elif kind == "done":
            self._done.add(worker)
        elif kind == "failed":
            self._fail(worker, content)
        elif kind == "stopped":
            self._hub.lose(worker, "it was stopped, and put out")
        elif kind == "exited" and worker not in self._done:
            self._hub.lose(worker, how_it_ended(content["status"]))
        elif kind == "lost":
            self._lost(worker, content)
        elif kind == "stuck":
            others = "; ".join(f"{name}: {at}" for name, at in content["others"].items())
            self._error = WaitedTooLong(
                f"worker {worker} on {self._hosts.get(worker, 'this host')} waited longer than "
                f"{self._launch.deadline_s:g} s ({content['awaited']}). Where the others were: {others or 'gone'}. "
                "If a step really takes so long, allow more with --deadline"
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
        if self._interrupts == 1:
            saved = "" if self._launch.target.kind == "script" else ", with a checkpoint"
            self._recorder.event("warning", message=f"stopping after this step{saved}; once more to stop at once")
            self._hub.ask_to_stop("interrupted")
        else:
            script = self._launch.target.kind == "script"
            kept = "" if script else ", without a last checkpoint; --resume goes on from the last one"
            self._error = Interrupted(f"stopped at once{kept}")

    def _wind_up(self) -> None:
        """Let the workers end, then see that they have; what they still said belongs to the record."""
        if self._error is not None:
            self._hub.abort(str(self._error))
        self._nursery.wait(END_S if self._error is None else 2.0)
        self._nursery.close()
        while True:
            try:
                kind, worker, content = self._hub.notices.get_nowait()
            except queue.Empty:
                return
            if kind in RECORDED:
                self._recorder.notice(kind, worker, content)

    def _conclude(self) -> dict[str, Any]:
        if self._error is None and self._interrupts:
            out = self._launch.out
            script = self._launch.target.kind == "script"
            kept = "; what it had to save was up to the script" if script else f" with a checkpoint in {out}"
            self._error = Interrupted(f"stopped{kept}" + ("" if script else "; --resume goes on at the next step"))
        result = self._recorder.end(self._error)
        if self._error is not None:
            raise self._error
        return result


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"its process ended with exit code {status}"


@contextlib.contextmanager
def _signals(interrupt: Any) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask the run to stop; only the main thread of a program may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, lambda *_: interrupt()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _private_file(content: bytes | None) -> Iterator[int | None]:
    """`content` in memory that only descriptors lead to; None for None."""
    if content is None:
        yield None
        return
    descriptor = os.memfd_create("cordee-job")
    try:
        os.write(descriptor, content)
        yield descriptor
    finally:
        os.close(descriptor)
