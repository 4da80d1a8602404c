"""The warm server of the tests: a fork has what jobs of `tests/jobs` import, and leaves out what no test looks at.

Two thirds of what most runs compute would else be these: the import of `transformers` in each worker, and the trace of
the model at the end. `harness.train(..., traced=True)` traces it, and so does a run that is started by the command.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

SERVER = Path(__file__)


def untraced(out: Path) -> Path:
    """The file that says so of a run."""
    name = hashlib.sha256(os.path.abspath(out).encode()).hexdigest()[:16]
    return Path(os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())) / f"untraced-{name}"


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """The number of such a server's process, which is there within the block."""
    from cordee.runtime.engines import warm

    def words(_: str, *given: str) -> list[str]:
        return [sys.executable, str(SERVER), *given]

    with mock.patch.object(warm, "python_module", words):
        pid = warm.start_warm(minutes=60)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    """As `python -m cordee.runtime.engines.forkserver PATH MINUTES`."""
    del sys.path[0]  # workers do not find the modules of tests
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from cordee.runtime.engines import forkserver
    from cordee.train import ending

    with contextlib.suppress(ImportError):
        from transformers import (  # noqa: F401
            BertForSequenceClassification,
            GPT2LMHeadModel,
            LlamaForCausalLM,
            Qwen3ForCausalLM,
            ViTForImageClassification,
        )
    assert threading.active_count() == 1, "a thread does not survive a fork"
    write = ending._write_program

    def write_program(training: Any, model: Any, device: str) -> None:
        if not untraced(training.out).exists():
            write(training, model, device)

    ending._write_program = write_program
    forkserver.main()


if __name__ == "__main__":
    main()
