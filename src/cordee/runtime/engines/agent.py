"""The host of a run in a place that an engine gave: a process that starts workers there, and what it is told.

Whatever holds the place (an actor, a task, a container) starts this process and writes one line to its standard input,
which stays open: when that end is gone, so is the place, and this process ends at once with its workers.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from cordee.core import interrupts
from cordee.core.errors import CordeeError, Interrupted, UsageError
from cordee.core.interpreter import python_module
from cordee.core.plan import Plan
from cordee.core.text import plain
from cordee.runtime.engines.choice import Chosen
from cordee.runtime.engines.results import brought
from cordee.runtime.launch import Launch
from cordee.runtime.rendezvous import Rendezvous
from cordee.runtime.spec import Target, Trial

LAST_LINES = 20
"""So many lines of what a process said last are kept for an error's message."""
END_S = 10.0
"""How long a process that was asked to end may take."""
OURS = "cordee: "
"""How a line begins that says how the process has ended; the first host hears of it."""
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "CORDEE_")
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")
"""Variables by which a process takes itself for a worker of another launcher."""


class Assignment(msgspec.Struct, frozen=True):
    """What the process in a place is told; it travels on the engine's own channel, and holds the run's token."""

    engine: str
    trusted_network: bool
    kind: str
    job: str
    """The path of the job's file on the first host."""
    source: bytes
    """What is in that file."""
    sent: bytes | None
    """A job that was made in Python, packed."""
    settings: dict[str, str]
    plan: str
    out: str
    """The run's folder, as the first host names it."""
    seen: str
    """The name of a file in that folder, by which a host can tell that it sees the same one."""
    folder: str
    """The current folder of the first host."""
    resume: bool
    threads: int | None
    device: str
    deadline_s: float
    versions: dict[str, str]
    """Of what has to be the same everywhere."""
    trial: Trial | None
    """Only some steps of the job."""
    host: str = ""
    """Where the first host listens: this, and the next two."""
    port: int = 0
    token: str = ""
    nodes: int = 0
    workers: int = 0
    """In this place."""
    results: str = ""
    """Where the first host takes what is written into the run's folder on a host that does not see it."""

    @property
    def sees_folder(self) -> bool:
        """Whether this host sees the run's folder."""
        return Path(self.out, self.seen).exists()


class Outcome(msgspec.Struct, frozen=True):
    """How the process in a place has ended."""

    code: int | None
    """Its exit code, negative for a signal; None: the place was lost with it."""
    host: str = ""
    said: str = ""
    """Its last lines, or why the place was lost."""


decode_assignment: Callable[[bytes], Assignment] = msgspec.json.Decoder(Assignment).decode


def versions() -> dict[str, str]:
    """What has to be the same on all hosts of a run: the major and minor version of Python, and packages."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("torch", "cordee"):
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            found[name] = "none"
    return found


def lost(error: BaseException, said: str, where: str, *, raised: bool) -> Outcome:
    """The end of a place that its engine tells so; `where`: which Python runs there.

    `raised`: not that the place was lost, but that something failed in it.
    """
    if "No module named 'cordee" in str(error):
        return Outcome(UsageError.code, said=f"Cordée is not installed there: install it in the Python of {where}")
    return Outcome(CordeeError.code if raised else None, said=said)


def mismatch(wanted: dict[str, str], found: dict[str, str], host: str) -> str:
    """What differs on a host from the first one, as one sentence; empty if nothing does."""
    differs = [
        f"{name} {found.get(name, 'none')} instead of {one}" for name, one in wanted.items() if found.get(name) != one
    ]
    if not differs:
        return ""
    return f"host {host} has {' and '.join(differs)}: install the same versions on all hosts"


def hold_place(assignment: bytes) -> Outcome:
    """Run the process in this place to its end; what its workers say goes to our standard error too."""
    environment = {
        name: one for name, one in os.environ.items() if not name.startswith(LAUNCHERS) and name not in RANKS
    }
    process = subprocess.Popen(
        python_module(__name__),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # a signal to the group of the process that holds the place is not for it
    )
    assert process.stdin is not None and process.stderr is not None
    last: deque[str] = deque(maxlen=LAST_LINES)
    with contextlib.suppress(OSError):  # it has ended already, and says why
        process.stdin.write(assignment + b"\n")
        process.stdin.flush()
    try:
        for line in process.stderr:
            text = line.decode(errors="replace").rstrip()
            last.append(text)
            if not text.startswith(OURS):
                print(text, file=sys.stderr, flush=True)  # noqa: T201
        code = process.wait()
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()  # which ends it, if it has not
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return Outcome(code, socket.gethostname(), "\n".join(last))


def launch_of(given: Assignment, folder: Path) -> Launch:
    """What to start in this place. `folder` is private, for what this host does not see of the first one."""
    job = given.job
    if given.kind == "job" and not _is_same(Path(job), given.source):
        job = str(folder / Path(given.job).name)
        Path(job).write_bytes(given.source)
    return Launch(
        Target(given.kind, job, given.settings, trial=given.trial),
        given.workers,
        Plan.parse(given.plan),
        Path(given.out) if given.sees_folder else folder / "run",
        given.resume,
        given.threads,
        deadline_s=given.deadline_s,
        device=given.device,
        rendezvous=Rendezvous(
            given.host, given.port, given.nodes, trusted_network=given.trusted_network, token=given.token
        ),
        engine=Chosen(given.engine, None),
        enters=True,
    )


def _is_same(path: Path, source: bytes) -> bool:
    try:
        return path.read_bytes() == source
    except OSError:
        return False


def _check(given: Assignment) -> None:
    host = socket.gethostname()
    if differs := mismatch(given.versions, versions(), host):
        raise CordeeError(differs)
    if given.resume and not given.sees_folder:
        raise UsageError(f"host {host} does not see {given.out}: a run is resumed from a folder that all hosts see")


def _end_with_the_place() -> None:
    """On a thread: whatever holds this place has our standard input open as long as it is there."""
    with contextlib.suppress(OSError, ValueError):
        while os.read(0, 4096):
            pass
    os._exit(Interrupted.code)  # the fork server sees that, and ends our workers


def _read_line() -> bytes:
    """From standard input, byte by byte: nothing of what follows may be kept in a buffer."""
    line = bytearray()
    while one := os.read(0, 65536):
        line += one
        if line.endswith(b"\n"):
            break
    return bytes(line)


def main() -> int:
    """`python -m cordee.runtime.engines.agent`, told by its standard input; the exit code."""
    from cordee.runtime.start import attend

    with tempfile.TemporaryDirectory(prefix="cordee-place-") as folder, interrupts.counted():
        try:
            given = decode_assignment(_read_line())
            threading.Thread(target=_end_with_the_place, daemon=True).start()
            _check(given)
            with contextlib.suppress(OSError):
                os.chdir(given.folder)
            launch = launch_of(given, Path(folder))
            with contextlib.nullcontext() if given.sees_folder else brought(launch.out, given.results, given.token):
                attend(launch, lambda event: None, given.sent)  # the first host says what there is to say
            return 0
        except CordeeError as error:
            print(plain(f"{OURS}{error}"), file=sys.stderr, flush=True)  # noqa: T201
            return error.code


if __name__ == "__main__":
    sys.exit(main())
