"""Scripts that Python runs without any launcher, each in a process of its own that need not import torch again."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness import DEADLINE_S

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch._dynamo", "cordee.train.session"])


class Started:
    """`python SCRIPT ARGUMENTS`, or `python -m` for a module's name, on one thread, left running."""

    def __init__(
        self,
        script: str | Path,
        *arguments: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        handle, name = tempfile.mkstemp()
        os.close(handle)
        self._output = Path(name)
        place = (name, str(cwd or Path.cwd()), dict(os.environ if env is None else env))
        self._process = FORKS.Process(target=_run, args=(*place, script, *map(str, arguments)))
        self._process.start()

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it printed; it is killed at the deadline."""
        self._process.join(DEADLINE_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join(DEADLINE_S)
        said = self._output.read_text(encoding="utf-8")
        self._output.unlink()
        code = self._process.exitcode
        assert code is not None, said
        return code, said


def python(script: str | Path, *arguments: str | Path, cwd: Path | None = None) -> str:
    """What `python SCRIPT ARGUMENTS` prints; an error if it fails."""
    code, said = Started(script, *arguments, cwd=cwd).end()
    assert code == 0, said
    return said


def _run(output: str, folder: str, environment: dict[str, str], script: str | Path, *arguments: str) -> None:
    import torch

    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
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
