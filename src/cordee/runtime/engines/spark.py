"""Spark: each place is the one task of a plain stage, in which the host of the run is a process.

A plain stage, since Spark tries such a task again elsewhere when its executor is lost; a barrier stage ends at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cordee.core.errors import RendezvousError, UsageError
from cordee.core.events import Listener
from cordee.runtime.engines.agent import Outcome, hold_place, lost
from cordee.runtime.engines.places import Asked, drive, signals_kept
from cordee.runtime.launch import Launch

if TYPE_CHECKING:
    from cordee.train.job import Job

REACH_S = 10.0
"""How long a master may take to accept a connection."""
QUIET = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF", "spark.speculation": "false"}
"""What a session of ours has unless the user sets it: a second attempt beside one that runs is one too many."""


@dataclass(frozen=True)
class Settings(Asked):
    """What is asked of Spark."""

    conf: str = field(default="", metadata={"help": "configuration of Spark: name=value;name=value"})

    def __post_init__(self) -> None:
        """Refuse what is no configuration."""
        super().__post_init__()
        self.configuration()

    def configuration(self) -> dict[str, str]:
        """What is set for a session of ours."""
        found = {}
        for one in filter(None, (part.strip() for part in self.conf.split(";"))):
            name, equals, value = one.partition("=")
            if not equals:
                raise UsageError(f"engine spark: setting conf was given {one!r}; expected name=value;name=value")
            found[name.strip()] = value.strip()
        return found


def run(launch: Launch, settings: Settings, hear: Listener, job: Job | None) -> dict[str, Any]:
    """As `ClusterEngine` says."""
    if launch.threads is None:  # a task has so many cores
        cores = settings.configuration().get("spark.task.cpus", "1")
        launch = replace(launch, threads=max(1, (int(cores) if cores.isdigit() else 1) // settings.each))
    return drive(launch, hear, job, lambda counts: SparkCluster(settings, counts, launch.out.name), settings)


class SparkCluster:
    """An application of Spark: the session that this process has already, or one that ends with the run."""

    name = "spark"

    def __init__(self, settings: Settings, counts: Sequence[int], run: str) -> None:
        """Start the application; executors come as they can."""
        try:
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise UsageError(
                f'--engine spark needs PySpark, which cannot be imported here ({error}): pip install "cordee[spark]"'
            ) from error
        _find_java()
        check_master(settings.address)
        self._run, self._group = run, f"cordee-{secrets.token_hex(4)}"
        self.patience_s = settings.wait
        self.advice = f"Spark had no slot for the others. Take fewer workers than {len(counts)}, or add executors"
        self._closed = threading.Event()
        former = SparkSession.getActiveSession()
        if former is None and not settings.address and "SPARK_ENV_LOADED" not in os.environ:
            raise UsageError(
                "--engine spark needs a cluster: --engine-set address=spark://HOST:7077 or local-cluster[2,1,1024], or "
                "start the command by spark-submit"
            )
        # Workers find the interpreter of this process, if the nodes have it and nothing else is said.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(f"cordee {run}")
        for name, value in {**QUIET, **settings.configuration()}.items():
            builder = builder.config(name, value)
        if settings.address:
            builder = builder.master(settings.address)
        try:
            with signals_kept():
                self._spark = former or builder.getOrCreate()
        except Exception as error:  # of Spark, py4j and Java, in many kinds
            raise RendezvousError(
                f"no Spark application could be started at {settings.address or 'its default master'}: {_last(error)}"
            ) from error
        self._own = former is None
        self._context = self._spark.sparkContext
        self.host = self._context.getConf().get("spark.driver.host", "")

    def call(self, place: int, assignment: bytes) -> Outcome:
        """As a job of its own, so that its end is heard at once; Spark tries it again if its executor is lost."""
        if self._closed.is_set():
            return Outcome(0)
        try:
            self._context.setJobGroup(self._group, f"cordee {self._run}: place {place}", interruptOnCancel=False)
            # In the function, not among the data: those go through a file of the driver.
            (outcome,) = self._context.parallelize([place], 1).map(partial(_hold, assignment)).collect()
            return msgspec.json.decode(outcome, type=Outcome)
        except Exception as error:  # of Spark, py4j and Java, in many kinds
            where = "the executors, or name one that has it by PYSPARK_PYTHON"
            return lost(error, _last(error), where, raised="PythonException" in str(error))

    def close(self) -> None:
        """Cancel what still runs, and end the application if it is ours."""
        self._closed.set()
        with contextlib.suppress(Exception):
            self._context.cancelJobGroup(self._group)
        if self._own:
            with contextlib.suppress(Exception):
                self._spark.stop()


def _hold(assignment: bytes, place: int) -> bytes:
    """The task, on an executor."""
    return msgspec.json.encode(hold_place(assignment))


def check_master(address: str) -> None:
    """Refuse a standalone master that does not answer: Spark itself asks it for a minute, and says something else."""
    if not address.startswith("spark://"):
        return
    reason = "expected spark://HOST:PORT"
    for one in address.removeprefix("spark://").split(","):
        host, _, port = one.rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACH_S).close()
            return
        except (OSError, ValueError) as error:
            reason = str(error) if host and port.isdigit() else reason
    raise RendezvousError(
        f"no master of Spark was reached at {address}: {reason}. Look whether it runs, and its address"
    )


def _find_java() -> None:
    """Refuse where there is no Java: Spark would say so in twenty lines."""
    home = os.environ.get("JAVA_HOME")
    if home and not Path(home, "bin", "java").exists():
        raise UsageError(f"--engine spark needs Java, and JAVA_HOME={home} has none: set it to a Java 17, or unset it")
    if not home and shutil.which("java") is None:
        raise UsageError(
            "--engine spark needs Java 17 or newer, and there is no java here: install it (openjdk-17-jre)"
        )


def _last(error: Exception) -> str:
    """What is left of an error that came through Java and Python: the line that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error: " in line or "Exception: " in line or line.startswith("[")]
    return (telling or lines or [type(error).__name__])[-1].lstrip(": ")
