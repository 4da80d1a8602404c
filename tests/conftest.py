"""What all tests share: how they are spread over processes, a warm server of their own, runs to compare with."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warmer
from harness import DEADLINE_S, Run, stat_of, train

TWIN = "tests/twin/"
HOUSE = "tests/shape/"
SEPARATE = ("tests/shape/test_docs.py", "tests/shape/test_readme.py")
"""What takes long of the house's tests; the others read the whole package, which one process does once."""
LONGEST = (
    TWIN,
    "tests/ranks/test_same_training.py",
    "tests/faults/test_worker_killed.py",
    "tests/e2e/test_examples.py",
    "tests/unit/test_preflight_table.py",
    "tests/e2e/test_user_faults.py",
    "tests/e2e/test_other_launchers.py",
    "tests/ranks/test_resume.py",
    "tests/faults/test_replace.py",
    "tests/ranks/test_where_time_goes.py",
    "tests/shape/test_readme.py",
    "tests/faults/test_no_orphans.py",
)
"""What must run one after the other and takes longest, the longest first: no process waits for it at the end."""

# ------------------------------------------------------------- what the commands under test inherit


def pytest_configure() -> None:
    """What the commands under test inherit is the same under `nohup`, in the background and without a terminal.

    A signal that is ignored stays so in child processes; one with a handler of Python's begins there as by default.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)
    # Hundreds of interpreters are started: without byte code on disk each would compile the package anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    with contextlib.suppress(OSError):
        os.fstat(0)
        return
    assert os.open(os.devnull, os.O_RDONLY) == 0


# ------------------------------------------------------------- several processes: `pytest -n auto`


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two per core, for most tests wait for processes that they have started; each has a warm server in memory."""
    return min(8, 2 * len(os.sched_getaffinity(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of one file run in one process, in their order; so do all tests of emulated hosts."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file.startswith(HOUSE) and file not in SEPARATE:
                return HOUSE
            return TWIN if file.startswith(TWIN) else file

    config.option.loadscopereorder = False  # the order of the collection, see below
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest rows come first, the rest in the order of the collection; of thinned tests most are slow."""

    def place(item: pytest.Item) -> int:
        return next((at for at, name in enumerate(LONGEST) if item.nodeid.startswith(name)), len(LONGEST))

    items.sort(key=place)
    seen: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if (mark := item.get_closest_marker("thinned")) is not None and seen[name] % mark.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[name] += 1


# ------------------------------------------------------------- runs


@pytest.fixture(scope="session", autouse=True)
def private_runtime() -> Iterator[Path]:
    """A folder of our own where Cordée looks for warm servers: no user's server is touched."""
    folder = Path(tempfile.mkdtemp(prefix="cordee-tests-"))
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    try:
        yield folder
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def warm(private_runtime: Path) -> Iterator[int]:
    """The number of a warm server's process."""
    with warmer.serving() as pid:
        yield pid
    deadline = time.monotonic() + DEADLINE_S
    while (found := stat_of(pid)) is not None and found[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found is None or found[0] == "Z", f"the warm server {pid} did not end"


Reference = Callable[..., Run]


@pytest.fixture(scope="session")
def reference(warm: int, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The run of one process for a job and its settings; made once, when it is first asked for."""
    made: dict[Any, Run] = {}

    def find(job: str, **settings: Any) -> Run:
        key = (job, *sorted(settings.items()))
        if key not in made:
            made[key] = train(job, tmp_path_factory.mktemp(job) / "run", **settings)
        return made[key]

    return find
