"""Ray: each place is a bundle of a placement group, held by an actor in which the host of the run is a process."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from cordee.core import interrupts
from cordee.core.errors import RendezvousError, UsageError
from cordee.core.events import Listener, WarningEvent
from cordee.core.words import plural
from cordee.runtime.engines.agent import Outcome, hold_place, lost
from cordee.runtime.engines.places import Asked, drive, signals_kept
from cordee.runtime.launch import Launch

if TYPE_CHECKING:
    from cordee.train.job import Job

LOOK_S = 0.5
REACH_S = 10.0
"""How long the cluster's first node may take to accept a connection."""
COME_S = 180.0
"""How long hosts may take to come from places that they have: they import torch first."""


@dataclass(frozen=True)
class Settings(Asked):
    """What is asked of Ray."""

    cpus: float = field(default=1.0, metadata={"help": "cores per worker, as Ray counts them"})
    gpus: float = field(default=0.0, metadata={"help": "GPUs per worker, as Ray counts them"})
    resources: str = field(default="", metadata={"help": "custom resources per worker, such as fast:1,a100:0.5"})
    strategy: str = field(
        default="PACK", metadata={"help": "where Ray puts places: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD"}
    )

    def __post_init__(self) -> None:
        """Refuse what Ray would."""
        super().__post_init__()
        kinds = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
        if self.strategy not in kinds:
            raise UsageError(f"engine ray: setting strategy was given {self.strategy!r}; expected {', '.join(kinds)}")
        if self.cpus < 0 or self.gpus < 0:
            raise UsageError(f"engine ray: settings cpus={self.cpus:g} and gpus={self.gpus:g} must not be negative")
        self.bundle(1)

    def bundle(self, workers: int) -> dict[str, float]:
        """What a place with so many workers needs."""
        found = {"CPU": self.cpus * workers, "GPU": self.gpus * workers}
        for one in filter(None, self.resources.split(",")):
            name, _, amount = one.rpartition(":")  # names may hold one: node:10.0.0.1
            try:
                found[name.strip()] = float(amount) * workers
            except ValueError:
                expected = "expected name:number,..., such as fast:1"
                raise UsageError(f"engine ray: setting resources was given {self.resources!r}; {expected}") from None
        return {name: amount for name, amount in found.items() if amount > 0} or {"CPU": 0.001}


def run(launch: Launch, settings: Settings, hear: Listener, job: Job | None) -> dict[str, Any]:
    """As `ClusterEngine` says."""
    if launch.threads is None and settings.cpus:  # what Ray counts is what a worker takes
        launch = replace(launch, threads=max(1, int(settings.cpus)))
    return drive(launch, hear, job, lambda counts: RayCluster(settings, counts, hear), settings)


def check_address(where: str) -> None:
    """Refuse what is no address of a cluster; `OSError` if nothing listens there."""
    if where == "auto":
        return
    host, _, port = where.rpartition(":")
    if "//" in host or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"engine ray: the address {where} is none that can be used: expected HOST:PORT of a cluster, such as "
            "10.0.0.1:6379. Give the command on a node of the cluster, or by `ray job submit`"
        )
    socket.create_connection((host, int(port)), REACH_S).close()


class RayCluster:
    """A cluster of Ray in which this run has a placement group."""

    name = "ray"
    patience_s = COME_S
    advice = "look into the logs of Ray's workers, and whether nodes reach this machine"

    def __init__(self, settings: Settings, counts: Sequence[int], hear: Listener) -> None:
        """Connect, and wait until there is a bundle for each place."""
        try:
            import ray
        except ImportError as error:
            raise UsageError(
                f'--engine ray needs Ray, which cannot be imported here ({error}): pip install "cordee[ray]"'
            ) from error
        self._ray, self._settings, self._counts = ray, settings, counts
        self._actors: dict[int, Any] = {}
        self._turn = threading.Lock()
        self._closed = False
        self._connect()
        try:
            self.host = str(ray.util.get_node_ip_address())
            self._group = ray.util.placement_group([settings.bundle(one) for one in counts], settings.strategy)
            try:
                self._await_places(hear)
            except BaseException:
                ray.util.remove_placement_group(self._group)
                raise
        except BaseException:
            ray.shutdown()
            raise

    def _connect(self) -> None:
        """Ray never starts a cluster here."""
        ray, where = self._ray, self._settings.address or os.environ.get("RAY_ADDRESS") or "auto"
        try:
            check_address(where)  # Ray itself asks an address for minutes where nothing answers
            with signals_kept():
                ray.init(address=where, logging_level=logging.ERROR, namespace="cordee")
        except UsageError:
            raise
        except Exception as error:  # of many kinds: ConnectionError, ValueError, RuntimeError, TimeoutError of its own
            first = str(error).strip().partition("\n")[0]
            raise RendezvousError(
                f"no Ray cluster was reached at {where}: {first}. Start one with `ray start --head`, or name it with "
                "--engine-set address=HOST:6379"
            ) from error

    def _await_places(self, hear: Listener) -> None:
        ready, deadline, told = self._group.ready(), time.monotonic() + self._settings.wait, False
        while not self._ray.wait([ready], timeout=LOOK_S)[0]:
            interrupts.check()
            if time.monotonic() >= deadline:
                raise RendezvousError(
                    f"Ray has no {plural(len(self._counts), 'place')} for this run within {self._settings.wait:g} s: "
                    f"{self._asked_and_free()}. Take fewer workers, or add nodes"
                )
            if not told:
                told = True
                hear(WarningEvent(f"waiting for Ray to give {plural(len(self._counts), 'place')}"))

    def _asked_and_free(self) -> str:
        wanted: dict[str, float] = {}
        for one in self._counts:
            for name, amount in self._settings.bundle(one).items():
                wanted[name] = wanted.get(name, 0.0) + amount
        free = self._ray.available_resources()
        return ", ".join(f"{name} {amount:g} asked, {free.get(name, 0.0):g} free" for name, amount in wanted.items())

    def call(self, place: int, assignment: bytes) -> Outcome:
        """In a fresh actor: Ray puts it where the bundle is, also after it had to move it to another node."""
        with self._turn:
            if self._closed:
                return Outcome(0)
        try:
            actor = self._actors[place] = self._start(place)
            return msgspec.json.decode(self._ray.get(actor.hold.remote(assignment)), type=Outcome)
        except Exception as error:  # the actor died, of one of many causes, or the connection to Ray is gone
            raised = isinstance(error, self._ray.exceptions.RayTaskError | ValueError)
            return lost(error, str(error).strip().partition("\n")[0], "all nodes", raised=raised)
        finally:
            with contextlib.suppress(Exception):
                self._ray.kill(self._actors[place])

    def _start(self, place: int) -> Any:
        """An actor in the bundle of this place, with all that it has."""
        bundle, strategies = self._settings.bundle(self._counts[place]), self._ray.util.scheduling_strategies
        options = {
            "num_cpus": bundle.pop("CPU", 0),
            "num_gpus": bundle.pop("GPU", 0),
            "memory": bundle.pop("memory", 0),
        }
        where = strategies.PlacementGroupSchedulingStrategy(self._group, place)
        return (
            self._ray.remote(Place)
            .options(**options, resources=bundle, scheduling_strategy=where, max_restarts=0)
            .remote()
        )

    def close(self) -> None:
        """End the actors, and give the placement group back."""
        with self._turn:
            self._closed = True
        for actor in self._actors.values():
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        with contextlib.suppress(Exception):
            self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()


class Place:
    """The actor that holds a place; it ends with the run, or with the command that started it."""

    def hold(self, assignment: bytes) -> bytes:
        """Run the host of the run to its end."""
        return msgspec.json.encode(hold_place(assignment))
