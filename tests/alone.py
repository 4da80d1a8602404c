"""Scripts and commands without any launcher, each in a process of its own that need not import torch and more again."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness import DEADLINE_S

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch._dynamo", "cordee.train.session", "cordee.cli.main", "cordee.cli.start"])


class Started:
    """`python SCRIPT ARGUMENTS`, or `python -m` for a module's name, on one thread, left running."""

    def __init__(
        self,
        script: str | Path,
        *arguments: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        place = (self._folder.name, str(cwd or Path.cwd()), dict(os.environ if env is None else env))
        self._process = FORKS.Process(target=_run, args=(*place, script, *map(str, arguments)))
        self._process.start()

    def end(self) -> subprocess.CompletedProcess[str]:
        """How it ended, and what it printed; it is killed at the deadline."""
        self._process.join(DEADLINE_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join(DEADLINE_S)
        with self._folder as folder:
            said, complaints = (Path(folder, name).read_text(encoding="utf-8") for name in ("out", "err"))
        code = self._process.exitcode
        assert code is not None, complaints
        return subprocess.CompletedProcess([], code, said, complaints)


def python(script: str | Path, *arguments: str | Path, cwd: Path | None = None) -> str:
    """What `python SCRIPT ARGUMENTS` prints; an error if it fails."""
    done = Started(script, *arguments, cwd=cwd).end()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def command(
    *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `harness.command` gives, sooner: where it is not the point how the command itself starts."""
    return Started("cordee", *arguments, cwd=cwd, env=env).end()


def _run(output: str, folder: str, environment: dict[str, str], script: str | Path, *arguments: str) -> None:
    import torch

    for number, name in ((1, "out"), (2, "err")):
        with open(Path(output, name), "wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.argv = [str(script), *arguments]
    if isinstance(script, str):
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
