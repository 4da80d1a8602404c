"""The memory of a host in which copies of a run's state lie: those of its own workers, and those of the host before it.

It belongs to the launcher, so it outlives workers. Of a launcher that was killed it is removed by the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from cordee.core.errors import PlanError
from cordee.core.events import Event
from cordee.core.locks import is_locked, take_lock
from cordee.group.bulk import Link, Listener, dial
from cordee.group.messages import Place, Who
from cordee.group.strangers import Strangers
from cordee.group.wire import Address
from cordee.runtime.folder import saved_step
from cordee.runtime.spec import WorkerSpec
from cordee.state.apart import assemble, parts_in
from cordee.state.index import folder_name, list_checkpoints
from cordee.state.peers import send_part, take_parts

MEMORY = Path("/dev/shm")
PREFIX = "cordee-state-"
LOCK = "launcher.lock"
SILENCE_S = 60.0
"""A worker whose copies come more seldom than that connects anew."""


class Kept:
    """What this host holds of the run's state in its memory; nothing where the plan asks for no copies."""

    def __init__(self, wanted: bool, interface: str = "", address: Address | None = None) -> None:
        """`interface`: where copies from another host are taken, with the token of `address`; empty: they are not."""
        self._wanted = wanted
        self.folder: Path | None = None
        self.place: Place | None = None
        """Where other hosts reach it."""
        self.next: Address | None = None
        """Where the workers of this host send their copies."""
        self._address = address
        self.tell: Callable[[Event], None] = lambda event: None
        """Takes what is for the record: of whom it has refused."""
        self._listener: Listener | None = None
        self._lock = -1
        if wanted:
            self._make()
            if interface and address is not None:
                self._listen(interface, address)

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._listener is not None:
            self._listener.close()
            self._strangers.tell()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)

    def told(self, spec: WorkerSpec) -> WorkerSpec:
        """What a worker of this host has to know."""
        return spec if self.folder is None else dataclasses.replace(spec, memory=str(self.folder), keeper=self.next)

    def send_to(self, keeper: Place | None) -> None:
        """From now on the workers of this host send their copies there."""
        self.next = self._at(keeper) if keeper is not None and self.folder is not None else None

    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return self.folder is None or not (parts_in(self.folder) or list_checkpoints(self.folder))

    def newest(self) -> int | None:
        """The newest step whose state is whole here, ready to be read, when no worker writes; None: none is."""
        return None if self.folder is None else assemble(self.folder)

    def bring(self, keeper: Place) -> None:
        """Give all parts to the host that reads them."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError):  # it is gone: then it does without
            link = dial(self._at(keeper), Who("node", socket.gethostname()), SILENCE_S)
            try:
                for part in parts_in(self.folder):
                    send_part(link, self.folder, part)
            finally:
                link.close()

    def write_down(self, out: Path) -> int | None:
        """The run ends: what is newer here than on disk is written there. The step; None: nothing is newer."""
        step = self.newest()
        if self.folder is None or step is None or step <= (saved_step(out) or -1):
            return None
        final = out / "checkpoints" / folder_name(step)
        hidden = final.with_name(f".{final.name}.new-{secrets.token_hex(4)}")
        try:
            shutil.copytree(self.folder / final.name, hidden)
            shutil.rmtree(final, ignore_errors=True)  # a damaged one
            hidden.rename(final)
        except OSError:
            shutil.rmtree(hidden, ignore_errors=True)
            return None
        return step

    def _at(self, keeper: Place) -> Address:
        assert self._address is not None
        return dataclasses.replace(self._address, host=keeper.interface, port=keeper.port)

    def _make(self) -> None:
        if not os.access(MEMORY, os.W_OK):
            raise PlanError(
                f"copy_every= keeps copies of the state in {MEMORY}, which cannot be written here: make it writable, "
                "or leave copy_every out"
            )
        for old in MEMORY.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # of another user
                if not is_locked(old / LOCK):
                    shutil.rmtree(old, ignore_errors=True)
        self.folder = MEMORY / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        hidden = self.folder.with_name(f".{self.folder.name}")
        hidden.mkdir(mode=0o700)
        lock = take_lock(hidden / LOCK)
        assert lock is not None
        self._lock = lock
        hidden.rename(self.folder)  # not before it is locked: another launcher may be looking

    def _listen(self, interface: str, address: Address) -> None:
        self._strangers = Strangers("the memory for copies of the state", lambda event: self.tell(event))
        self._listener = Listener(interface, address.token, tls=address.tls, silence_s=SILENCE_S)
        self.place = Place(0, socket.gethostname(), interface, self._listener.port)
        self._listener.strangers = self._strangers
        self._listener.start(self._serve)

    def _serve(self, link: Link, who: Who) -> None:
        assert self.folder is not None
        take_parts(link, self.folder)
