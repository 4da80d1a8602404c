"""Sums over hosts that have several ranks: added up within each host through memory, among hosts by one rank of each.

The first rank of a host is its leader. A tensor is cut into pieces. Each other rank of the host copies a piece into a
slot of its own; the leader adds these to its own piece, in the order of ranks, and adds the result up with the other
leaders over gloo; all ranks of the host copy what came out of it. So a host's link carries 2 (h - 1) / h of the tensor
for h hosts, however many ranks they have, and all ranks get the same bits. There are a few slots: while one piece is on
the wire, the next ones are added up. One thread per rank does all this, so that sums go on while a rank computes.

What commits rests on this: a sum has ended on one rank only if all ranks have begun it, and so all that came before
it on this transport. gloo adds up a piece when all leaders have it, and a leader has it when all ranks of its host have
posted it. The reverse does not hold. A leader may be lost when it has the result and has not published it, or has
published it for its own host alone; a loss may leave one host with the result and another without it. That is what a
flat ring may do too: members then differ by one agreement, and `Team` hands over what one of them has.

A sum that is cut off never touches its tensor again: `cut` returns when the thread has stopped. What gloo may still
write to is a slot of this generation.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from cordee.group.transport.gloo import Gloo
from cordee.group.transport.memory import Store, open_memory
from cordee.group.transport.seam import Sent, Transport
from cordee.group.transport.slots import Leader, Mate, Side, Slots, pieces_of

LEAST_BYTES = 65_536
"""Smaller sums take as long as their messages do, of which a flat ring needs fewer."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_LOOK_S = 0.05
"""Between two looks whether a peer was lost; a rank that is cut off by its channel is released at once."""
_LEAST_SLEEP_S, _MOST_SLEEP_S = 0.00002, 0.001
"""Between two looks of the thread."""


class Hierarchy(Transport):
    """Carries large sums of floating-point tensors on CPUs; see `Transport`. Its thread starts with the first one."""

    def __init__(self, side: Side, hosts: int, deadline_s: float) -> None:
        """Of so many `hosts`; a sum may take `deadline_s`."""
        self.side, self.stations = side, hosts
        self._deadline_s = deadline_s
        self._thread: threading.Thread | None = None
        self._waiting: deque[tuple[int, Tensor]] = deque()
        self._open: deque[tuple[int, Tensor]] = deque()
        """Pieces in the order of their numbers: not begun yet; begun and not ended."""
        self._begun = self._ended = 0
        """The last number that was given, and the last that has ended."""
        self._turn = threading.Condition()
        """For these numbers, and for what follows."""
        self._leaving = self._over = False
        """Whether the thread is asked to stop; whether it touches no tensor any more."""
        self._error: Exception | None = None
        self._moved = 0.0
        """When the thread last had something to do."""
        self._touching = threading.Lock()
        """Held by the thread while it reads or writes tensors."""

    def sum(self, tensor: Tensor) -> HierarchyWork | None:
        """Add up in place."""
        if self.sends(tensor) is None:
            return None
        flat = tensor.data.view(-1)  # as with gloo, version counters do not see when results come
        with self._turn:
            if self._leaving:
                raise RuntimeError("a member was lost before the sum began")
            for start, stop in pieces_of(flat.numel(), flat.element_size()):
                self._begun += 1
                self._waiting.append((self._begun, flat[start:stop]))
            self._moved = time.monotonic()
            self._turn.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cordee-hierarchy", daemon=True)
            self._thread.start()
        return HierarchyWork(self, self._begun)

    def sends(self, tensor: Tensor) -> Sent | None:
        """What this rank sends to add up such a tensor."""
        carried = tensor.nbytes >= LEAST_BYTES and tensor.is_cpu and tensor.is_contiguous() and tensor.dtype in DTYPES
        return self.side.sends(tensor.nbytes) if carried else None

    def pace(self, rates: Mapping[str, float]) -> None:
        """Leaders send no faster than this."""
        if isinstance(self.side, Leader):
            self.side.leaders.pace(rates)

    def cut(self) -> None:
        """Release every wait; afterwards no tensor is touched."""
        self._leaving = True
        self.side.cut()
        with self._touching, self._turn:
            self._over = True
            self._turn.notify_all()

    def close(self, *, stuck: bool) -> None:
        """The thread closes what it has used."""
        if self._thread is None:
            self.side.close()

    def has_ended(self, number: int) -> bool:
        """Whether the piece with this number, and so all before it, has its result."""
        return self._ended >= number

    def finish(self, number: int, broken: Callable[[], bool]) -> None:
        """Wait for the pieces up to this one; `RuntimeError` if a member was lost before that."""
        began = time.monotonic()
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._ended >= number or self._over, _LOOK_S)
                if self._ended >= number:
                    return
                if self._over:
                    raise RuntimeError(f"the sum was cut off: {self._error or 'a member was lost'}")
            if broken():
                self.cut()
            elif (waited := time.monotonic() - began) > self._deadline_s:
                raise RuntimeError(f"waited {waited:.0f} s for the other members")

    # ------------------------------------------------------------- the thread

    @torch.inference_mode()  # writes into any tensor, in whichever mode it was made
    def _run(self) -> None:
        while self._await_work():
            with self._touching:
                moved = not self._leaving and self._advance()
            now = time.monotonic()
            self._moved = now if moved else self._moved
            if not moved:  # what comes soon is seen soon, and a long wait costs little
                time.sleep(min(max((now - self._moved) / 8, _LEAST_SLEEP_S), _MOST_SLEEP_S))
        self.side.cut()  # after an error of our own, too: the other leaders wait for us in vain
        self.side.close()

    def _await_work(self) -> bool:
        """False when it is time to stop."""
        with self._turn:
            self._turn.wait_for(lambda: self._leaving or self._waiting or self._open)
            return not self._leaving

    def _advance(self) -> bool:
        """End and begin what is due; False if nothing is."""
        try:
            if ends := bool(self._open) and self.side.end(*self._open[0]):
                with self._turn:
                    self._ended = self._open.popleft()[0]
                    self._turn.notify_all()
            if begins := bool(self._waiting) and self.side.begin(*self._waiting[0]):
                self._open.append(self._waiting.popleft())
            return ends or begins
        except Exception as error:  # a peer was lost, or began another collective: who waits for a sum is told
            with self._turn:
                self._error, self._leaving, self._over = error, True, True
                self._turn.notify_all()
            return False


class HierarchyWork:
    """A sum that was begun."""

    ends_by_itself = True
    __slots__ = ("_hierarchy", "_number")

    def __init__(self, hierarchy: Hierarchy, number: int) -> None:
        """Made by `Hierarchy.sum`; `number` is that of its last piece."""
        self._hierarchy, self._number = hierarchy, number

    def has_ended(self) -> bool:
        """Whether its result is here."""
        return self._hierarchy.has_ended(self._number)

    def wait(self, broken: Callable[[], bool]) -> None:
        """Until its result is here."""
        self._hierarchy.finish(self._number, broken)


def open_hierarchy(
    store: Store, place: tuple[int, int], crews: Sequence[Sequence[int]], interface: str, deadline_s: float
) -> Hierarchy | None:
    """Among `crews_of` the hosts; `place`: rank, size. The leaders' group is not formed yet.

    None for all ranks if one does not reach the memory of its host.
    """
    rank, size = place
    crew = next(one for one in crews if rank in one)
    memory = open_memory(store, rank, size, crew, Slots.length_for(len(crew)))
    if memory is None:
        return None
    slots = Slots(memory, crew, rank)
    side = Leader(slots, Gloo(interface), len(crews)) if rank == crew[0] else Mate(slots)
    return Hierarchy(side, len(crews), deadline_s)
