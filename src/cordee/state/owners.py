"""The owners of a checkpoint: workers that hold slices write them at once into one folder, and the first commits it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cordee.core.damage import write_whole
from cordee.core.errors import WaitedTooLong, WorkersLost
from cordee.state.layout import write_part
from cordee.state.naming import Snapshot

LOOK_S = 0.01


@dataclass(frozen=True)
class Owners:
    """Which owner this worker is. They meet in the file system: nothing waits for the training, nor it for them."""

    number: int = 0
    count: int = 1
    token: str = ""
    """The same for all owners, and for no other run: by it they find the folder of a checkpoint under way."""

    lost: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Whether one of the owners was lost: then its slices never come."""

    @property
    def first(self) -> bool:
        """Whether this one commits."""
        return self.number == 0

    def write(self, snapshot: Snapshot, folder: Path, deadline_s: float, on_read: Callable[[], None]) -> None:
        """Of an owner that does not commit: its slices, into the folder that the first owner has made."""
        self._await(folder, "which the first owner makes", deadline_s)
        part = write_part(folder, snapshot.slices_alone(), self.number, on_read)
        write_whole(folder / f"part-{self.number:05d}.json", json.dumps(part))

    def parts(self, folder: Path, deadline_s: float) -> Iterator[dict[str, Any]]:
        """Of the first owner: what the others have written, as it comes."""
        for number in range(1, self.count):
            path = folder / f"part-{number:05d}.json"
            self._await(path, f"the slices of owner {number} of {self.count}", deadline_s)
            yield json.loads(path.read_text(encoding="utf-8"))
            path.unlink()

    def _await(self, path: Path, what: str, deadline_s: float) -> None:
        """Wait until `path` is there."""
        deadline = time.monotonic() + deadline_s
        while True:
            lost = self.lost()  # asked before the look: what a lost owner has left is taken
            if path.exists():
                return
            if lost:
                raise WorkersLost(f"a worker that holds slices of the model was lost before {path} came: {what}")
            if time.monotonic() > deadline:
                raise WaitedTooLong(
                    f"a checkpoint waited {deadline_s:g} s for {path}, {what}. All workers that hold slices of a model "
                    "write into the folder of the run: let them see the same one."
                )
            time.sleep(LOOK_S)
