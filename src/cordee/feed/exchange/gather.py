"""All-gather: every host ends with the blocks of all, on its local disk, in the order of the hosts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cordee.core import interrupts
from cordee.core.errors import DataError, RendezvousError, StorageError, UsageError
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.forward import must_be_whole
from cordee.feed.exchange.listing import BLOCK, PART, Checksum, Entry, entries_of
from cordee.feed.exchange.messages import Outcome
from cordee.feed.exchange.receiver import Receiver
from cordee.feed.exchange.send import send

FICLONE = 0x40049409
"""Linux' name for a copy that takes no room."""
LOOK_S = 0.1
PATIENCE_S = 600.0
"""How long hosts wait for each other: the same command is rarely typed everywhere at once."""


@dataclass(frozen=True)
class Gathered:
    """What a host has at the end."""

    parts: tuple[Path, ...]
    """A folder for the blocks of each host, in the order of the hosts."""
    received: int
    """Bytes of files that came to this host."""
    sent: int
    """Bytes of files that this host has sent, and passed on."""
    seconds: float
    """With waiting for the other hosts."""


def all_gather(
    path: str | Path,
    folder: str | Path,
    hosts: Sequence[str],
    here: str,
    *,
    access: Access,
    deadline_s: float = 3600.0,
    tell: Callable[[str], None] = lambda text: None,
) -> Gathered:
    """Give the files of `path` to all `hosts`, and take theirs, to `folder / part-00000` and so on.

    Every host calls this with the same list `hosts`, of which `here` is its own. All blocks go around the ring at the
    same time: each host sends and receives the blocks of every other host once. `deadline_s` is for all of it.
    """
    if here not in hosts or len(set(hosts)) != len(hosts):
        raise UsageError(f"{here} is to be one of the hosts, each of which is named once: {', '.join(hosts)}")
    began, mine = time.monotonic(), list(hosts).index(here)
    path, folder = Path(path).expanduser().absolute(), Path(folder).expanduser().absolute()
    parts = tuple(folder / f"part-{number:05d}" for number in range(len(hosts)))
    ring = [*hosts[mine + 1 :], *hosts[:mine]]
    outcomes: list[Outcome] = []
    problems: list[BaseException] = []

    def give() -> None:
        try:
            sent = send(path, ring, how="chain", access=access, name=parts[mine].name, tell=tell)
            outcomes.extend(sent.outcomes)
            given.append(sent.sent)
        except Exception as error:
            problems.append(error)

    given: list[int] = []
    with contextlib.closing(Receiver(folder, here, access, tell)) as receiver:
        _copy(path, parts[mine], entries_of(path, tell))
        if not ring:
            return Gathered(parts, 0, 0, time.monotonic() - began)
        _await(ring, access, tell, began + min(deadline_s, PATIENCE_S))
        giving = threading.Thread(target=give, name="cordee-gather", daemon=True)
        giving.start()
        deliveries = receiver.wait(len(ring), deadline_s - (time.monotonic() - began))
        giving.join(max(0.0, deadline_s - (time.monotonic() - began)))
    if problems:
        raise problems[0]
    there = {one.offer.name: one for one in deliveries if one.own.complete}
    if absent := [host for number, host in enumerate(hosts) if number != mine and parts[number].name not in there]:
        reasons = "; ".join(one.own.reason for one in deliveries if not one.own.complete) or "they did not come"
        raise DataError(
            f"the blocks of {', '.join(absent)} are not complete here ({reasons}). Give the same command again on all "
            "hosts: only what is lacking travels"
        )
    must_be_whole(outcomes, f"what {here} has sent")
    received = sum(one.own.received for one in deliveries)
    return Gathered(parts, received, sum(given) + sum(one.own.sent for one in deliveries), time.monotonic() - began)


def _await(hosts: Sequence[str], access: Access, tell: Callable[[str], None], until: float) -> None:
    """Until all others listen."""
    missing, told = list(hosts), 0.0
    while missing:
        interrupts.check()
        try:
            access.dial(missing[0]).close()
            del missing[0]
        except OSError as error:
            if time.monotonic() > until:
                raise RendezvousError(
                    f"{', '.join(missing)} did not come ({error}): start the same command on each of the hosts"
                ) from error
            if time.monotonic() - told > 10:
                told = time.monotonic()
                tell(f"waiting for {', '.join(missing)}")
            time.sleep(LOOK_S)


def _copy(path: Path, part: Path, entries: Sequence[Entry]) -> None:
    """This host's own blocks, beside those of the others."""
    for entry in entries:
        there, new = path if path.is_file() else path / entry.path, part / entry.path
        if new.is_file() and _is(new, entry):
            continue
        making = new.with_name(f"{PART}{os.getpid()}")
        try:
            new.parent.mkdir(parents=True, exist_ok=True)
            making.unlink(missing_ok=True)
            _duplicate(there, making)
            making.replace(new)
        except OSError as error:
            raise StorageError(f"cannot write {new}: {error.strerror}") from error


def _duplicate(path: Path, new: Path) -> None:
    """A file of its own: one that shares the blocks of the disk until either is changed, where there are such."""
    with path.open("rb") as file, new.open("wb") as other:
        try:
            fcntl.ioctl(other.fileno(), FICLONE, file.fileno())
        except OSError:
            shutil.copyfileobj(file, other, BLOCK)


def _is(path: Path, entry: Entry) -> bool:
    if path.stat().st_size != entry.size:
        return False
    check = Checksum(entry.check)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            check.add(block)
    return check.agrees
