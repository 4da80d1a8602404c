"""Which workers are in this generation, as one of them sees it. Knows nothing of tensors."""

from __future__ import annotations

import time

from cordee.core.errors import CordeeError, WaitedTooLong
from cordee.group.channel import Channel, Unconnected
from cordee.group.messages import Finish, Go, Ready, Torn
from cordee.group.store import HubStore

MOST_TEARS = 3
"""How often a collective may fail before the next agreement, though no worker was lost, until it is an error."""
ENTER_DEADLINES = 12
"""How many deadlines a newcomer waits: before the next step, the others may evaluate and save."""


class Membership:
    """This worker's place among the members of a generation; unconnected, it is the only one."""

    def __init__(self, channel: Channel | Unconnected, deadline_s: float = 300.0) -> None:
        """Alone until the first call of `advance`."""
        self.channel = channel
        self.deadline_s = deadline_s
        self.worker = channel.worker
        """A worker's number never changes; its rank is its place among the members."""
        self.generation = 0
        self.stuck = False
        """Whether a collective of this generation hangs for ever: then nothing in it is waited for."""
        self.tears = 0
        """Collectives that failed since the last agreement though no worker was lost."""
        self.members: tuple[int, ...] = (self.worker,)
        self.rank, self.size = 0, 1
        self.outside = False
        """Whether others train already, and this worker has not come in yet."""
        self.left = False
        """Whether this worker has left the others, which go on."""

    @property
    def broken(self) -> bool:
        """Whether a member of this generation was lost."""
        return self.channel.broken >= self.generation

    def await_break(self, deadline_s: float) -> bool:
        """Give the hub a moment to say which member was lost; False if none was."""
        return isinstance(self.channel, Channel) and self.channel.wait(lambda: self.broken, deadline_s)

    def advance(self, committed: int, *, admits: bool = False) -> Go:
        """Wait for the next generation, with so many agreements committed, and enter it.

        `admits`: workers that wait outside may come in with it.
        """
        go = Go(self.generation + 1, (self.worker,), committed, None)
        if isinstance(channel := self.channel, Channel):
            channel.send(Ready(committed, admits))
            times, what = (
                (ENTER_DEADLINES, "a place among the others") if self.outside else (1, "the other workers to regroup")
            )
            channel.require(lambda: self._is_next(channel.go), times * self.deadline_s, what)
            assert channel.go is not None
            go, self.outside = channel.go, False
            self.left = self.worker in go.left
            if self.left:
                return go
        self.generation, self.members = go.generation, go.members
        self.rank, self.size = go.members.index(self.worker), len(go.members)
        self.stuck = False
        return go

    def _is_next(self, go: Go | None) -> bool:
        return go is not None and go.generation > self.generation and self.worker in (*go.members, *go.left)

    def leave(self) -> bool:
        """Say that this worker is done; True when all are, False if a member was lost before that."""
        if not isinstance(channel := self.channel, Channel):
            return True
        channel.send(Finish())
        channel.require(lambda: channel.farewell or self.broken, self.deadline_s, "the other workers to finish")
        return channel.farewell

    def store(self, purpose: str) -> HubStore:
        """Where the members of this generation leave values for each other."""
        assert isinstance(self.channel, Channel)
        return HubStore(self.channel, self.generation, self.deadline_s, purpose)

    def collective_failed(self, error: RuntimeError, waited_s: float) -> None:
        """Return once this generation is broken: by a loss, or, a few times, because this worker asks for a new one."""
        if waited_s >= 0.95 * self.deadline_s:
            self.channel.stuck(self.channel.at, self.deadline_s)
            raise WaitedTooLong(
                f"worker {self.worker} waited {waited_s:.0f} s for its peers ({self.channel.at})"
            ) from error
        if self.await_break(2.0):
            return
        self.tears += 1
        if self.tears > MOST_TEARS:
            raise CordeeError(
                f"worker {self.worker}: a collective keeps failing though no peer was lost: {error}"
            ) from error
        self.channel.send(Torn(self.generation))
        self.await_break(self.deadline_s)

    def clock(self) -> float:
        """The time of day by the coordinator's clock."""
        return time.time() + self.channel.clock_offset_s
