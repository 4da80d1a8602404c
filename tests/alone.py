"""Scripts that Python runs without any launcher, each in a process of its own that need not import torch again."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path

from harness import DEADLINE_S

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch._dynamo", "cordee.train.session"])


def python(script: Path, *arguments: str | Path) -> str:
    """What `python SCRIPT ARGUMENTS` prints, on one thread; an error if it fails."""
    with tempfile.NamedTemporaryFile() as output:
        process = FORKS.Process(target=_run, args=(output.name, dict(os.environ), str(script), *map(str, arguments)))
        process.start()
        process.join(DEADLINE_S)
        said = Path(output.name).read_text(encoding="utf-8")
        if process.exitcode is None:
            process.kill()
        assert process.exitcode == 0, said
    return said


def _run(output: str, environment: dict[str, str], script: str, *arguments: str) -> None:
    import torch

    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
