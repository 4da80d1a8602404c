"""A run whose workers are in places of a cluster: it coordinates from here, and the engine gives a host per place."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from cordee.core.errors import CordeeError, Evicted, JobError, PlanError, UsageError, all_errors
from cordee.core.events import Listener, WarningEvent
from cordee.group.wire import Address
from cordee.runtime.engines.agent import OURS, Assignment, Outcome, versions
from cordee.runtime.engines.results import Results
from cordee.runtime.launch import Launch
from cordee.runtime.notices import Notices
from cordee.runtime.rendezvous import Rendezvous
from cordee.runtime.sent import pack_job
from cordee.runtime.start import run

if TYPE_CHECKING:
    from cordee.train.job import Job

END_S = 10.0
"""How long hosts may take to end by themselves when the run has ended."""
GRACE_S = 1.0
"""A host may end a little before this one knows that the run does."""
SOON_S = 30.0
"""A place that is lost within so long was lost soon."""
MOST_SOON = 3
"""So many times in a row a place may be lost soon, until it stays empty."""
Follows = Literal["nothing", "again", "warn", "fail"]


class Cluster(Protocol):
    """What an engine has to do: a thin executor. Made when it is reached, closed when the run has ended."""

    name: str
    host: str
    """An address of this machine that the places reach."""
    patience_s: float
    """How long hosts may take to come from their places."""
    advice: str
    """What to do if some do not."""

    def call(self, place: int, assignment: bytes) -> Outcome:
        """Hold this place by `agent.hold_place(assignment)` in it, until that has ended; called by a thread per place.

        A place that is lost is an `Outcome` without a code; the next call gets another one as soon as there is one.
        """

    def close(self) -> None:
        """Give all places back, with whatever still runs in them. Calls that wait return."""


@dataclass(frozen=True)
class Asked:
    """Settings that every engine has: what the run needs of it."""

    address: str = field(default="", metadata={"help": "where the cluster is; empty: where the engine finds it itself"})
    each: int = field(default=1, metadata={"help": "workers per place"})
    wait: float = field(default=300.0, metadata={"help": "seconds that places may take to be given, and to come"})

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.each < 1 or self.wait <= 0:
            raise UsageError(
                f"engine settings each={self.each}, wait={self.wait:g}: at least 1, and above 0, are needed"
            )

    def counts(self, workers: int) -> list[int]:
        """How many workers each place has; the last one has those that are left over."""
        full, left = divmod(workers, self.each)
        return [self.each] * full + [left] * bool(left)


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Handlers that are installed within, by what is imported and connected there, do not stay: ours count signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def error_of(code: int | None) -> type[CordeeError]:
    """The error that ends a process with this exit code."""
    return next((one for one in all_errors() if one.code == code), CordeeError)


def what_follows(outcome: Outcome, *, begun: bool, soon: int) -> Follows:
    """What to do when the process in a place has ended while the run has not; `soon`: how often in a row at once.

    Places are filled `again` when they were lost, when a signal ended the process, or when the others continued
    without it.
    """
    if outcome.code is None or outcome.code < 0 or outcome.code == Evicted.code:
        if soon <= MOST_SOON:
            return "again"
        return "warn" if begun else "fail"
    if outcome.code == 0:
        return "nothing"
    return "warn" if begun else "fail"


class Places:
    """Keeps a host in each place of a cluster, as `start.HostPlaces` says: one thread per place."""

    def __init__(self, cluster: Cluster, counts: Sequence[int], assign: Callable[[Address, int], Assignment]) -> None:
        """So many workers in each place. `assign` gives what a place is told, once the coordinator has an address."""
        self._cluster, self._counts, self._assign = cluster, counts, assign
        self.patience_s, self.advice = cluster.patience_s, cluster.advice
        self._begun = False
        """Whether all places have come."""
        self.results: Results | None = None
        """Takes what is written in places that do not see the run's folder."""
        self._notices: Notices = queue.SimpleQueue()
        self._over = threading.Event()
        self._threads: dict[int, threading.Thread] = {}

    def begin(self, address: Address, notices: Notices) -> None:
        """Start a host in each place; in a start that continues the run those that are left are there already."""
        self._notices = notices
        self._over.clear()
        for place, workers in enumerate(self._counts):
            if place in self._threads:
                continue
            assignment = msgspec.json.encode(self._assign(address, workers))
            thread = threading.Thread(
                target=self._keep, args=(place, assignment), name=f"cordee-place-{place}", daemon=True
            )
            self._threads[place] = thread
            thread.start()

    def all_came(self) -> None:
        """From now on what becomes of one place does not end the run."""
        self._begun = True

    def wait(self, seconds: float) -> bool:
        """The run is about to end: wait at most so long until all hosts have ended; whether they have."""
        self._over.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads.values())

    def close(self) -> None:
        """Let the hosts end, then give the places back."""
        self.wait(END_S)
        if self.results is not None:
            self.results.settle()
        self._cluster.close()
        if self.results is not None:
            self.results.close()
        self.wait(END_S)

    def _keep(self, place: int, assignment: bytes) -> None:
        """On a thread: fill this place as often as it is lost, until the run is over."""
        soon = 0
        while not self._over.is_set():
            began = time.monotonic()
            outcome = self._cluster.call(place, assignment)
            if self._over.wait(GRACE_S):
                return
            soon = soon + 1 if time.monotonic() - began < SOON_S else 0
            follows = what_follows(outcome, begun=self._begun, soon=soon)
            text = f"place {place}{f' on {outcome.host}' * bool(outcome.host)} of {self._cluster.name}"
            said = outcome.said.strip().rpartition("\n")[2].removeprefix(OURS)
            if follows == "again":
                text += f" was lost ({said or outcome.code}): {self._cluster.name} is asked for another one"
                self._notices.put((-1, WarningEvent(text)))
                continue
            if follows == "warn":
                self._notices.put((-1, WarningEvent(f"{text} stays empty: {said}")))
            elif follows == "fail":
                self._notices.put((-1, error_of(outcome.code)(f"{text}: {said}")))
            return


def drive(
    launch: Launch,
    hear: Listener,
    job: Job | None,
    connect: Callable[[Sequence[int]], Cluster],
    asked: Asked,
) -> dict[str, Any]:
    """Coordinate a run from here, with its workers in places of the cluster that `connect` reaches and asks for them.

    `connect` is given the number of workers of each place, and returns once it has places, or raises.
    """
    check_plan(launch)
    counts, token = asked.counts(launch.workers), secrets.token_hex(32)
    marker = launch.out.absolute() / f".seen-{secrets.token_hex(8)}"
    told = assignment_of(launch, marker, job)  # read before anything is asked for
    with contextlib.ExitStack() as ends:
        cluster = connect(counts)

        def assign(address: Address, workers: int) -> Assignment:
            if places.results is None:  # the folder is there now
                marker.touch()
                places.results = Results(launch.out, cluster.host, token)
            where = {"host": address.host, "port": address.port, "results": places.results.place}
            return msgspec.structs.replace(told, **where, token=token, nodes=len(counts) + 1, workers=workers)

        places = Places(cluster, counts, assign)
        ends.callback(marker.unlink, missing_ok=True)
        ends.callback(places.close)
        meeting = Rendezvous(cluster.host, 0, len(counts) + 1, trusted_network=launch.trusted_network, token=token)
        return run(replace(launch, workers=0, rendezvous=meeting), hear, job, places)


def check_plan(launch: Launch) -> None:
    """Refuse a plan that cannot run in places of an engine."""
    assert launch.engine is not None
    launch.plan.check(launch.workers)
    if launch.plan.recover != "ask":
        given = f"recover={launch.plan.recover} does not go with {launch.wording.option('engine', launch.engine.name)}"
        raise PlanError(
            f"{given}: places that come and go would meet the hosts that come back. Leave it out; where no whole "
            f"replica is left, the run ends, and {launch.wording.flag('resume')} continues it"
        )


def assignment_of(launch: Launch, marker: Path, job: Job | None) -> Assignment:
    """What all places are told, but for where the first host is; `marker`: the file of its folder to look for."""
    assert launch.engine is not None
    target = launch.target
    try:
        source = Path(target.path).read_bytes() if target.kind == "job" else b""
    except OSError as error:
        raise JobError(f"{target.path} cannot be read: {error.strerror}") from error
    return Assignment(
        engine=launch.engine.name,
        trusted_network=launch.trusted_network,
        kind=target.kind,
        job=str(Path(target.path).absolute()) if target.kind == "job" else "",
        source=source,
        sent=None if job is None else pack_job(job),
        settings={**launch.taken_over, **target.settings},
        plan=str(launch.plan),
        out=str(marker.parent),
        seen=marker.name,
        folder=os.getcwd(),
        resume=launch.resume,
        threads=launch.threads,
        device=launch.device,
        deadline_s=launch.deadline_s,
        versions=versions(),
        trial=target.trial,
    )
