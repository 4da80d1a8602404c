"""A parameter server: holds one shard, as its first holder, which workers talk to, or as its backup.

What the first holder acknowledges, the backup has too: the complete sum of a step before any worker learns that it is
complete, and each update before the first holder makes it. So when either is lost, the other one has all that workers
count on; what they had pushed of an incomplete sum, they push again. The coordinator says which server holds what: a
view, with a number that grows. A holder of an old view cannot acknowledge anything, for its backup refuses it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from cordee.core.errors import CordeeError
from cordee.core.events import WarningEvent
from cordee.group.bulk import Gone, Link
from cordee.group.messages import Filled, Holders, Message, Place, Posted, Who
from cordee.sync.server import messages as said
from cordee.sync.server import rules
from cordee.sync.server.log import Entry, Log, LogReader
from cordee.sync.server.messages import Said, decode
from cordee.sync.server.packing import unpack
from cordee.sync.server.store import Store
from cordee.sync.server.views import Copying, NotFirst, Views

Answer = tuple[Said | None, Sequence[Tensor]]
"""With the tensors that follow; None: not answered."""


class Holder:
    """What one server process holds; its methods are called by the threads of its connections and of the hub's."""

    def __init__(
        self,
        number: int,
        reach: Callable[[Place], Link],
        tell: Callable[[Message], None],
        *,
        deadline_s: float,
        logs: Path | None,
    ) -> None:
        """`reach` connects to another server; `tell` speaks to the coordinator; logs lie in the folder `logs`."""
        self._tell, self._deadline_s, self._logs = tell, deadline_s, logs
        self._log = Log(None, 0, self._content)
        self._views = Views(number)
        self._copying = Copying(self._views, reach, deadline_s)
        self._stores: dict[int, Store] = {}
        """By the number of their optimizer."""
        self._turn = threading.Condition()
        """Held while stores change, and while the backup gets the same change."""
        self._broken = 0
        """The last generation of workers that is over."""
        self._has_role = False
        """Whether it has been the first holder."""

    # ------------------------------------------------------------- what the coordinator says

    def see(self, view: Holders) -> None:
        """Which server holds what from now on."""
        self._views.see(view)
        self._copying.see()
        self._take_up()
        threading.Thread(target=self._look, name="cordee-look", daemon=True).start()

    def break_up(self, generation: int) -> None:
        """A generation of workers is over: what it did not complete is done again."""
        self._broken = max(self._broken, generation)
        threading.Thread(target=self._look, name="cordee-look", daemon=True).start()

    def _look(self) -> None:
        """Wake those that wait, and fill a new backup; on a thread of its own, as stores may be busy for a while."""
        with self._turn:
            self._turn.notify_all()
            try:
                there = self._views.as_first()[1].filling
            except NotFirst:
                return
            if there is None or self._copying.has(there):
                return
            try:
                if not self._copying.fill(there, self._content()):
                    return
            except ValueError as refused:  # tried again when servers or workers have changed
                self._tell(Posted([WarningEvent(_without_backup(there, refused))]))
                return
        self._tell(Filled(there.number))

    def _take_up(self) -> None:
        """As the first holder, write a log from now on; as one whose former holders are all lost, read theirs."""
        try:
            view, holding = self._views.as_first()
        except NotFirst:
            return
        if self._logs is None or self._has_role:
            return
        self._has_role = True
        with self._turn:
            shard = self._views.shard(holding)
            self._log = Log(self._logs, shard, self._content)
            if view == 1:
                self._log.remove()
            elif not self._views.has_all or not self._stores:
                self._stores.clear()
                with self._log.reading() as reader, contextlib.suppress(Gone):
                    while True:
                        self._take(reader, reader.receive(decode))

    def close(self) -> None:
        """The run is over."""
        self._log.remove()

    def _content(self) -> list[Entry]:
        """All that another server needs to take this one's place."""
        found: list[Entry] = []
        for key, store in self._stores.items():
            if store.loaded:
                found.append(store.whole(key))
            if store.sealed:
                numbers, sums = store.sums()
                found.append((said.Seal(key, *store.attempt, numbers), sums))
        return found

    # ------------------------------------------------------------- connections

    def serve(self, link: Link, who: Who) -> None:
        """Answer one peer until it is gone."""
        asked = self._asked_by_server if who.role == "server" else self._asked_by_worker
        while True:
            answer, tensors = _answered(asked, link, link.receive(decode))
            if answer is not None:
                link.send(answer, tensors)

    def _asked_by_worker(self, link: Link, message: Said) -> Answer:
        match message:
            case said.Open():
                return self._open(message), ()
            case said.Load():
                tensors = _receive(link, message)
                with self._first(message.shard):
                    if not self._store(message.key).loaded:
                        self._share(message, tensors)
                        self._load(message, tensors)
                    return said.Opened(True, self._store(message.key).version, 0), ()
            case said.Push(key, step, attempt, worker, numbers, item, codec):
                store = self._store(key)
                gradients = _receive_some(link, store, numbers, codec)
                with self._turn:
                    if item is not None:
                        store.items.stage(item, worker, numbers, gradients)
                    elif store.is_open(step, attempt):
                        store.add(worker, numbers, gradients)
                return None, ()
            case said.Close():
                return self._close(message), ()
            case said.Apply():
                return self._apply(message)
            case said.Update():
                return self._update(message)
            case said.Pull(key):
                with self._first(self._store(key).shard):
                    return _fresh(self._store(key))
            case said.Keep(key):
                with self._turn:
                    held, tensors = self._store(key).kept()
                    return said.Kept(held), [one.clone() for one in tensors]
        raise Gone(f"{type(message).__name__} is not for this server")

    def _asked_by_server(self, link: Link, message: Said) -> Answer:
        """As a backup, or one that becomes it; the first holder of an old view is refused."""
        try:
            self._views.as_first()
        except NotFirst:
            self._take(link, message)
            return said.Done(), ()
        raise NotFirst

    def _take(self, link: Link | LogReader, message: Said) -> None:
        """What another holder has acknowledged."""
        match message:
            case said.Load():
                tensors = _receive(link, message)
                with self._turn:
                    self._load(message, tensors)
            case said.Seal(key, step, attempt, numbers):
                store = self._store(key)
                sums = _receive_some(link, store, numbers)
                with self._turn:
                    store.seal(step, attempt, numbers, sums)
            case said.Copy(update):
                with self._turn:
                    self._store(update.key).apply(update)
            case _:
                raise Gone(f"{type(message).__name__} is not for a backup")

    def _first(self, shard: int) -> threading.Condition:
        """To be held while something is done as the first holder of a shard; raises `NotFirst`."""
        self._views.as_first(shard)
        return self._turn

    def _share(self, message: said.Load | said.Seal | said.Copy, tensors: Sequence[Tensor] = ()) -> None:
        """Let the log and the backup have it, before it is acknowledged."""
        self._log.append(message, tensors)
        self._copying.send(message, tensors)

    def _store(self, key: int) -> Store:
        if key not in self._stores:
            raise Gone(f"nothing was opened by the number {key}")
        return self._stores[key]

    def _load(self, message: said.Load, tensors: Sequence[Tensor]) -> None:
        store = Store(message.shard, message.forms)
        store.load(message, tensors)
        self._stores[message.key] = store

    # ------------------------------------------------------------- answers

    def _open(self, message: said.Open) -> Said:
        with self._first(message.shard):
            store = self._stores.setdefault(message.key, Store(message.shard, message.forms))
            if store.forms != message.forms:
                raise ValueError("workers disagree on the parameters of a shard")
            return said.Opened(store.loaded, store.version, store.items.base)

    def _close(self, message: said.Close) -> Said:
        """Wait for the gradients of all workers; then the sum is complete, here and on the backup."""
        store, ends = self._store(message.key), time.monotonic() + self._deadline_s
        with self._first(store.shard):
            if message.step < store.version:  # by a worker that had committed it, and was lost before it could say so
                return said.Norm(store.last_square)
            if not store.is_open(message.step, message.attempt):
                return said.Void()
            if not store.close(message.worker, message.pieces):
                return said.Missing()
            self._turn.notify_all()

            # A complete sum counts though a worker was lost since: another one may have been told so already.
            while (there := store.attempt == (message.step, message.attempt)) and not store.has(message.workers):
                left_s = ends - time.monotonic()
                if message.over or self._broken >= message.attempt[0] or left_s <= 0:
                    return said.Void()
                self._turn.wait(left_s)
                self._views.as_first(store.shard)
            if not there:
                return said.Void()
            if not store.sealed:
                numbers, sums = store.sums()
                self._share(said.Seal(message.key, message.step, message.attempt, numbers), sums)
                store.sealed = True
            return said.Norm(store.square())

    def _apply(self, message: said.Apply) -> Answer:
        store = self._store(message.key)
        with self._first(store.shard):
            if message.step >= store.version:
                if not store.sealed or store.attempt != (message.step, message.attempt):
                    raise ValueError(f"step {message.step} of shard {store.shard} has no complete sum: a defect")
                self._share(said.Copy(message))
                store.apply(message)
        return said.Fresh(store.version), [one.detach() for one in store.parameters]  # not changed before all have them

    def _update(self, message: said.Update) -> Answer:
        """Apply what one worker has pushed; an item that was applied is not applied again."""
        store = self._store(message.key)
        with self._first(store.shard):
            if not store.items.is_over(message.item, store.version):
                gradients = store.items.staged(message.item, message.worker, message.pieces)
                if gradients is None:
                    return said.Missing(), ()
                attempt = (store.version, (0, 0))
                store.seal(*attempt, list(gradients), list(gradients.values()))
                self._share(said.Seal(message.key, *attempt, list(gradients)), list(gradients.values()))
                update = said.Apply(
                    message.key, *attempt, message.factor, message.groups, message.item, message.worker, message.share
                )
                self._share(said.Copy(update))
                store.apply(update)
            return _fresh(store, store.items.applied.get(message.item, -1))


def _answered(asked: Callable[[Link, Said], Answer], link: Link, message: Said) -> Answer:
    """The answer to a message, or why there is none."""
    try:
        return asked(link, message)
    except NotFirst:
        return said.Elsewhere(), ()
    except OSError:
        raise
    except (ValueError, CordeeError) as error:
        return said.Refused(str(error), type(error).__name__), ()
    except Exception as error:  # of the user's optimizer, or a defect: the run ends with it
        return said.Refused(f"{type(error).__name__}: {error}"), ()


def _without_backup(there: Place, refused: ValueError) -> str:
    return (
        f"the parameter server on {there.host} that was to become a backup refused what it was given: {refused}. Until "
        "servers or workers change, what it was to hold has no backup; the run's folder has it, unless persist=false"
    )


def _fresh(store: Store, worker: int = -1) -> Answer:
    """The parameters, in memory of their own, as others may change them while they are sent."""
    return said.Fresh(store.version, worker), [one.detach().clone() for one in store.parameters]


def _receive(link: Link | LogReader, message: said.Load) -> list[Tensor]:
    """What follows a `Load`."""
    try:
        tensors = [rules.empty(form) for form in message.forms] + list(rules.room_for(message.held))
    except (ValueError, RuntimeError, torch.OutOfMemoryError) as error:
        raise Gone(str(error)) from error
    link.receive_into(tensors)
    return tensors


def _receive_some(link: Link | LogReader, store: Store, numbers: Sequence[int], codec: str = "") -> list[Tensor]:
    """Tensors of the form of these parameters: at most as many bytes as the shard holds."""
    if not store.loaded:
        raise Gone("nothing was loaded yet")
    if not all(0 <= number < len(store.forms) for number in numbers) or len(set(numbers)) < len(numbers):
        raise Gone("no parameters have these numbers")
    forms = [store.forms[number] for number in numbers]
    if codec:
        return unpack(codec, forms, link.receive_into)
    tensors = [rules.empty(form) for form in forms]
    link.receive_into(tensors)
    return tensors
