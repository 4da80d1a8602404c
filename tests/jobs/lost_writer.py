"""A model in slices, of which one worker is killed while it writes its part of a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import sliced

import cordee
from cordee.core.world import World
from cordee.state import layout
from cordee.state.checkpoint import Checkpoints


def job(worker: int = -1, step: int = 6) -> cordee.Job:
    """`worker` is killed in the checkpoint of `step`, once its training waits for that to be written."""
    awaited, write_part, close = threading.Event(), layout.write_part, Checkpoints.close

    def write_or_die(folder: Path, *args: Any) -> dict[str, Any]:
        if World.from_env().rank == worker and f"step-{step:08d}" in folder.name:
            awaited.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return write_part(folder, *args)

    def close_awaited(self: Checkpoints) -> None:
        if self.under_way == step:
            awaited.set()
        close(self)

    if worker >= 0:
        layout.write_part, Checkpoints.close = write_or_die, close_awaited  # type: ignore[method-assign]
    return sliced.job(kind="blocks", save_steps=3, stop_steps=6)
