"""What one parameter server knows of which servers hold what, and its way to its backup."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from cordee.group.bulk import Gone, Link
from cordee.group.messages import Holders, Holding, Place
from cordee.sync.server import messages as said
from cordee.sync.server.log import Entry
from cordee.sync.server.messages import decode

RETRY_S = 0.05
"""How often a holder tries to reach its backup again."""


class NotFirst(Exception):
    """This server is not the first holder of its shard, or no more."""


class Views:
    """The latest view of the coordinator, as the server with this number sees it."""

    def __init__(self, number: int) -> None:
        """None yet: it holds nothing."""
        self._number = number
        self._changed = threading.Condition()
        self._view = Holders(0, [])
        self.has_all = True
        """Whether it may count on what it holds: not while it is being filled."""

    def see(self, view: Holders) -> None:
        """Another view; an older one is ignored."""
        with self._changed:
            self._view = max(view, self._view, key=lambda one: one.view)
            holding = self.holding()[1]
            if holding is not None and self._number in (one.number for one in (holding.backup, holding.filling) if one):
                self.has_all = holding.backup is not None and holding.backup.number == self._number
            self._changed.notify_all()

    def holding(self) -> tuple[int, Holding | None]:
        """The number of the view, and which servers hold this one's shard; None if it holds none."""
        with self._changed:
            mine = (one for one in self._view.shards if self._number in _numbers(one))
            return self._view.view, next(mine, None)

    def as_first(self, shard: int | None = None) -> tuple[int, Holding]:
        """The same, for the first holder of a shard; raises `NotFirst`."""
        with self._changed:
            view, holding = self.holding()
            if holding is None or holding.first is None or holding.first.number != self._number:
                raise NotFirst
            if shard is not None and self._view.shards.index(holding) != shard:
                raise NotFirst
            return view, holding

    def shard(self, holding: Holding) -> int:
        """The number of the shard that these hold."""
        with self._changed:
            return self._view.shards.index(holding)

    def await_after(self, view: int) -> None:
        """Give the coordinator a moment to say which server is lost."""
        with self._changed:
            self._changed.wait_for(lambda: self._view.view > view, RETRY_S)


class Copying:
    """The connection of a first holder to the server that has all that it has."""

    def __init__(self, views: Views, reach: Callable[[Place], Link], deadline_s: float) -> None:
        """`reach` connects to another server."""
        self._views, self._reach, self._deadline_s = views, reach, deadline_s
        self._copy: tuple[int, Link] | None = None

    def send(self, message: said.Load | said.Seal | said.Copy, tensors: Sequence[Tensor] = ()) -> None:
        """Let the backup have it too; returns when it has, or when there is none; raises `NotFirst`."""
        ends = time.monotonic() + self._deadline_s
        while time.monotonic() < ends:
            view, holding = self._views.as_first()
            there = holding.backup or (holding.filling if self.has(holding.filling) else None)
            if there is None:
                return
            try:
                if not self.has(there):
                    self._connect(there)
                self._give(message, tensors)
                return
            except Gone:
                self._drop()
            self._views.await_after(view)
        raise Gone("the backup does not answer")

    def has(self, there: Place | None) -> bool:
        """Whether this server has all, and is connected."""
        return there is not None and self._copy is not None and self._copy[0] == there.number

    def see(self) -> None:
        """Give up a server that is not the backup any more: one that was cut off would never answer."""
        copy, holding = self._copy, self._views.holding()[1]
        if copy is not None and holding is not None and copy[0] not in _numbers(holding):
            copy[1].cut()

    def fill(self, there: Place, content: Iterable[Entry]) -> bool:
        """Give a new server all that there is; False if it is lost, `ValueError` if it refuses that."""
        try:
            self._connect(there)
            for message, tensors in content:
                self._give(message, tensors)
        except Gone:  # the coordinator sees it, and names another one
            self._drop()
            return False
        except ValueError:
            self._drop()
            raise
        return True

    def _connect(self, there: Place) -> None:
        self._drop()
        self._copy = there.number, self._reach(there)
        self.see()  # the view may have changed meanwhile

    def _give(self, message: said.Said, tensors: Sequence[Tensor]) -> None:
        assert self._copy is not None
        self._copy[1].send(message, tensors)
        answer = self._copy[1].receive(decode)
        if isinstance(answer, said.Refused):  # as this server would, too
            raise ValueError(answer.reason)
        if not isinstance(answer, said.Done):
            raise Gone("it did not take what it was given")

    def _drop(self) -> None:
        if self._copy is not None:
            self._copy[1].close()
            self._copy = None


def _numbers(holding: Holding) -> list[int]:
    return [one.number for one in (holding.first, holding.backup, holding.filling) if one is not None]
