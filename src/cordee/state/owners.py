"""The owners of a checkpoint: workers that hold slices write them at once into one folder, and the first commits it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from cordee.core.errors import WaitedTooLong, WorkersLost
from cordee.state.layout import Part, leave_part, take_part, write_part
from cordee.state.naming import Snapshot
from cordee.state.places import hidden_name

LOOK_S = 0.01
Found = TypeVar("Found")


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

    def write(
        self, snapshot: Snapshot, final: Path, shard_bytes: int, deadline_s: float, on_read: Callable[[], None]
    ) -> int:
        """Of an owner that does not commit: its slices, into the folder that the first owner has made."""
        folder = hidden_name(final, "new", self.token)
        self._await(lambda: folder.is_dir() or None, f"the folder {folder}, which the first owner makes", deadline_s)
        prefix = f"slice-{self.number:05d}-"
        part = write_part(folder, snapshot.own(self.number), shard_bytes=shard_bytes, on_read=on_read, prefix=prefix)
        leave_part(folder, self.number, part)
        return part.bytes

    def parts(self, folder: Path, deadline_s: float) -> Iterator[Part]:
        """Of the first owner: what the others have written, as it comes."""
        for number in range(1, self.count):
            what = f"the slices of owner {number} of {self.count} in {folder}"
            yield self._await(partial(take_part, folder, number), what, deadline_s)

    def _await(self, look: Callable[[], Found | None], what: str, deadline_s: float) -> Found:
        """What `look` gives once it gives something."""
        deadline = time.monotonic() + deadline_s
        while True:
            lost = self.lost()  # asked before the look: what a lost owner has left is taken
            if (found := look()) is not None:
                return found
            if lost:
                raise WorkersLost(f"a worker that holds slices of the model was lost before this was there: {what}")
            if time.monotonic() > deadline:
                raise WaitedTooLong(
                    f"a checkpoint waited {deadline_s:g} s for {what}. All workers that hold slices of a model write "
                    "into the folder of the run: let them see the same one."
                )
            time.sleep(LOOK_S)
