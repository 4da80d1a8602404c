"""Kubernetes: this process is a pod of an indexed Job, whose number says which host of the run it is.

`cordee deploy kubernetes` writes what starts the pods. The first one coordinates. The others come to it by its name,
which stays when the pod is started again somewhere else: they may come before the run begins, or enter it later.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cordee.core import interrupts
from cordee.core.errors import CordeeError, RendezvousError, UsageError
from cordee.core.eventlog import read_events
from cordee.core.events import EndEvent, Listener
from cordee.runtime import start
from cordee.runtime.folder import saved_step
from cordee.runtime.launch import Launch
from cordee.runtime.rendezvous import Rendezvous
from cordee.runtime.resources import spread

if TYPE_CHECKING:
    from cordee.train.job import Job

INDEX = "JOB_COMPLETION_INDEX"
"""Kubernetes sets it in each pod of an indexed Job."""
LOOK_S = 0.5


@dataclass(frozen=True)
class Settings:
    """What a pod is told; `cordee deploy kubernetes` writes all of it."""

    pods: int = field(default=1, metadata={"help": "how many there are"})
    first: str = field(default="", metadata={"help": "where the first one is, such as digits-0.digits:29400"})
    token: str = field(default="", metadata={"help": "file of the mounted secret"})
    wait: float = field(default=600.0, metadata={"help": "seconds until the first pod has to have an address"})


def run(launch: Launch, settings: Settings, hear: Listener, job: Job | None) -> dict[str, Any]:
    """This pod's part of the run; the first one returns the result."""
    if INDEX not in os.environ:
        raise UsageError(
            f"engine kubernetes is for the pods of an indexed Job, but there is no {INDEX} here: `cordee deploy "
            "kubernetes` writes the manifests that start them"
        )
    pod = int(os.environ[INDEX])
    if pod > 0 and has_ended(launch.out):
        return {}
    host, _, port = settings.first.rpartition(":")
    meeting = Rendezvous(host, int(port), settings.pods, Path(settings.token), launch.trusted_network)
    launch = replace(launch, workers=spread(launch.workers, settings.pods)[pod], rendezvous=meeting)
    if not launch.resume and saved_step(launch.out) is not None:  # all pods were lost, or the first one
        launch = replace(launch, resume=True).taking_over()
    await_name(host, settings.wait)
    if pod == 0:
        return start.run(replace(launch, engine=None), hear, job)
    start.attend(replace(launch, enters=True), hear, None)
    return {}


def has_ended(out: Path) -> bool:
    """Whether the run in this folder has come to its end: a pod that is started again has nothing to do then."""
    try:
        *_, last = read_events(out / "events.jsonl")
    except (OSError, CordeeError, ValueError):
        return False
    return isinstance(last, EndEvent) and last.code == 0


def await_name(host: str, seconds: float) -> None:
    """Until this name has an address: the first pod may be started later."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.getaddrinfo(host, None, socket.AF_INET)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"{host} has no address after {seconds:g} s ({error.strerror}): look whether the first pod runs, "
                    "and whether there is a headless service of that name"
                ) from error
        interrupts.check()
        time.sleep(LOOK_S)
