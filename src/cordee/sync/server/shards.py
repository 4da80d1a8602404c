"""A worker's side of the parameter servers: one `Shard` for each part, which finds its first holder and talks to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.errors import WaitedTooLong, error_named
from cordee.group.bulk import Gone, Link, Tally, dial
from cordee.group.channel import Channel
from cordee.group.messages import Place, Who
from cordee.group.wire import Address
from cordee.sync.server import messages as said
from cordee.sync.server import rules
from cordee.sync.server.layout import pieces
from cordee.sync.server.messages import Said, decode
from cordee.sync.server.packing import Pack, Packing

T = TypeVar("T")
LOOK_S = 0.2
"""How long a worker waits for news of a server that does not answer, before it tries again."""
Attempt = tuple[int, int]


class Shard:
    """The part of the parameters that one server holds, as a worker sees it; a thread of its own talks to the server.

    Every exchange is one that can be made again: when a server is lost, with the one that takes its place.
    """

    def __init__(
        self,
        number: int,
        parameters: Sequence[nn.Parameter],
        key: int,
        channel: Channel,
        deadline_s: float,
        packing: Packing | None = None,
    ) -> None:
        """`key` numbers the optimizer; without a `packing`, gradients travel as they are. Nothing is connected yet."""
        self.number, self.key, self.parameters = number, key, list(parameters)
        self._channel, self._deadline_s, self._packing = channel, deadline_s, packing
        self._places = {one: place for place, one in enumerate(self.parameters)}
        self.pieces = pieces([one.nbytes for one in self.parameters], [(p.dtype, p.device) for p in self.parameters])
        self._forms = [rules.form_of(one) for one in self.parameters]
        self._thread = ThreadPoolExecutor(1, f"cordee-shard-{number}")
        self._reached: tuple[Place, Link] | None = None
        """The server that it talks to."""
        self._sent: set[int] = set()
        """The pieces of the open attempt that went over this connection."""
        self._attempt: tuple[int, Attempt, said.Item | None] | None = None
        self.tally = Tally()
        """Of all that went to and came from its servers."""
        self.saved = 0
        """Bytes that a codec has saved of what was pushed."""
        self._packs: dict[int, Pack] = {}
        """The pieces of the open attempt, as they were sent: a server that takes the place of another gets the same."""
        channel.on_holders.append(self.see)

    def see(self) -> None:
        """Give up a server that is not the first holder any more: one that was cut off would never answer."""
        if (reached := self._reached) is not None and reached[0] != self._first():
            reached[1].cut()

    def close(self) -> None:
        """Hang up."""
        self._channel.on_holders.remove(self.see)
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._hang_up()

    # ------------------------------------------------------------- what the training thread calls

    def open(self) -> Future[said.Opened]:
        """Ask whether the parameters are there."""
        message = said.Open(self.number, self.key, self._forms)
        return self._submit(lambda link: self._ask(link, said.Opened, message))

    def load(self, optimizer: Optimizer, version: int) -> Future[said.Opened]:
        """Give the server the parameters, and what the optimizer keeps."""
        rule = rules.describe(optimizer, self._places)
        held, tensors = rules.kept_by(optimizer, self._places)
        message = said.Load(self.number, self.key, version, self._forms, rule, held)
        tensors = [*(_on_host(one) for one in self.parameters), *tensors]
        return self._submit(lambda link: self._ask(link, said.Opened, message, tensors))

    def push(self, step: int, attempt: Attempt, piece: int) -> Future[None]:
        """Send one piece of the gradients early; what fails here is sent again by `complete`."""
        return self._thread.submit(self._push_early, step, attempt, piece)

    def complete(
        self, step: int, attempt: Attempt, workers: Sequence[int], *, over: bool = False
    ) -> Future[float | None]:
        """Push what was not pushed yet, and wait for those of all workers: the square of the sum's norm.

        None if a worker was lost; if that is known, and the attempt is `over`, nothing is waited for.
        """
        return self._submit(lambda link: self._complete(link, step, attempt, list(workers), over))

    def apply(self, step: int, attempt: Attempt, factor: float, groups: list[dict[str, Any]]) -> Future[said.Fresh]:
        """Let the server update, and take the parameters over."""
        message = said.Apply(self.key, step, attempt, factor, groups)
        return self._submit(lambda link: self._fetch(link, message))

    def update(self, item: said.Item, share: float, factor: float, groups: list[dict[str, Any]]) -> Future[said.Fresh]:
        """Push what was not pushed yet of an item, let the server apply it, and take the parameters over."""
        message = said.Update(self.key, item, self._channel.worker, len(self.pieces), share, factor, groups)
        return self._submit(lambda link: self._update(link, message))

    def commit(self) -> None:
        """What was pushed last counts, and with it what it left out."""
        if self._packing is not None:
            self._packing.commit_packs(list(self._packs.values()))

    def pull(self) -> Future[said.Fresh]:
        """Take the parameters over as they are now."""
        message = said.Pull(self.key)
        return self._submit(lambda link: self._fetch(link, message))

    def keep(self, optimizer: Optimizer) -> Future[None]:
        """Let the optimizer of this worker keep what the server's keeps, to be saved."""
        return self._submit(lambda link: self._keep(link, optimizer))

    # ------------------------------------------------------------- its thread

    def _submit(self, exchange: Callable[[Link], T]) -> Future[T]:
        return self._thread.submit(self._until_done, exchange)

    def _until_done(self, exchange: Callable[[Link], T]) -> T:
        """Make an exchange with the first holder of the shard, and again with the next one if that is lost."""
        ends = time.monotonic() + self._deadline_s
        failed = "it was never there"
        while time.monotonic() < ends:
            place = self._first()
            if place is None:
                self._channel.wait(lambda: self._first() is not None, LOOK_S)
                continue
            try:
                return exchange(self._link_to(place))
            except Gone as error:
                failed = f"{place.name}: {error}"
                self._hang_up()
            self._await_other(place)
        waited = f"{self._channel.name} waited {self._deadline_s:g} s"
        raise WaitedTooLong(f"{waited} for the parameter server of shard {self.number} ({failed})")

    def _await_other(self, lost: Place) -> None:
        """Give the coordinator a moment to name another server."""
        self._channel.wait(lambda: self._first() != lost, LOOK_S)

    def _first(self) -> Place | None:
        view = self._channel.holders
        return view.shards[self.number].first if view is not None else None

    def _link_to(self, place: Place) -> Link:
        if self._reached is None or self._reached[0] != place:
            self._hang_up()
            known = self._channel.address
            who = Who("worker", self._channel.name, self._channel.worker)
            address = Address(place.interface, place.port, known.token, known.tls)
            self._reached = place, dial(address, who, self._deadline_s, self.tally)
            self.see()  # the view may have changed while this thread was dialling
        return self._reached[1]

    def _hang_up(self) -> None:
        if self._reached is not None:
            self._reached[1].close()
        self._reached = None
        self._sent.clear()

    def _ask(self, link: Link, kind: type[T], message: Said, tensors: Sequence[Tensor] = ()) -> T:
        """Send, and receive an answer of this kind."""
        answer = self._answered(link, message, tensors)
        if not isinstance(answer, kind):
            raise Gone(f"it answered {type(answer).__name__}")
        return answer

    def _answered(self, link: Link, message: Said, tensors: Sequence[Tensor] = ()) -> Said:
        link.send(message, tensors)
        answer = link.receive(decode)
        if isinstance(answer, said.Refused):
            raise error_named(answer.error)(f"the parameter server of shard {self.number}: {answer.reason}")
        return answer

    def _push_early(self, step: int, attempt: Attempt, piece: int) -> None:
        if self._reached is None or self._reached[0] != self._first():
            return
        try:
            self._push(self._reached[1], step, attempt, piece)
        except Gone:
            self._hang_up()

    def _push(
        self, link: Link, step: int, attempt: Attempt, piece: int, item: said.Item | None = None, share: float = 1.0
    ) -> None:
        if self._attempt != (step, attempt, item):
            self._attempt = step, attempt, item
            self._sent.clear()
            self._packs.clear()
        if piece in self._sent:
            return
        pack = self._packs.get(piece) or self._pack(piece, share)
        codec = self._packing.codec if self._packing is not None and pack.left_out else ""
        link.send(said.Push(self.key, step, attempt, self._channel.worker, pack.numbers, item, codec), pack.tensors)
        self.saved += pack.saved
        self._sent.add(piece)

    def _pack(self, piece: int, share: float) -> Pack:
        """What is sent of the gradients of a piece; some parameters may have none."""
        there = [(number, self.parameters[number].grad) for number in self.pieces[piece]]
        given = {number: gradient for number, gradient in there if gradient is not None}
        if self._packing is None or not given:
            return Pack(list(given), [_on_host(one) for one in given.values()], {})
        parameters = [self.parameters[number] for number in given]
        self._packs[piece] = self._packing.pack(list(given), parameters, list(given.values()), share)
        return self._packs[piece]

    def _complete(self, link: Link, step: int, attempt: Attempt, workers: list[int], over: bool) -> float | None:
        message = said.Close(self.key, step, attempt, self._channel.worker, len(self.pieces), workers, over)
        while True:
            for piece in range(len(self.pieces)):
                self._push(link, step, attempt, piece)
            match self._answered(link, message):
                case said.Norm(square):
                    return float("inf") if square is None else square
                case said.Void():
                    return None
                case said.Missing():  # this server has taken the place of another one
                    self._sent.clear()
                case answer:
                    raise Gone(f"it answered {type(answer).__name__}")

    def _update(self, link: Link, message: said.Update) -> said.Fresh:
        while True:
            for piece in range(len(self.pieces)):
                self._push(link, 0, (0, 0), piece, message.item, message.share)
            match self._answered(link, message):
                case said.Fresh() as fresh:
                    self._take(link)
                    if fresh.worker == message.worker:  # not that of a worker which was lost before all servers had it
                        self.commit()
                    return fresh
                case said.Missing():  # this server has taken the place of another one
                    self._sent.clear()
                case answer:
                    raise Gone(f"it answered {type(answer).__name__}")

    def _fetch(self, link: Link, message: Said) -> said.Fresh:
        fresh = self._ask(link, said.Fresh, message)
        self._take(link)
        return fresh

    def _take(self, link: Link) -> None:
        """The parameters, in place."""
        with torch.no_grad():
            into = [
                one if one.is_contiguous() and not one.is_cuda else torch.empty(one.shape, dtype=one.dtype)
                for one in self.parameters
            ]
            link.receive_into(into)
            for parameter, fresh in zip(self.parameters, into, strict=True):
                if fresh is not parameter:
                    parameter.copy_(fresh)

    def _keep(self, link: Link, optimizer: Optimizer) -> None:
        kept = self._ask(link, said.Kept, said.Keep(self.key))
        tensors = list(rules.room_for(kept.held))
        link.receive_into(tensors)
        rules.give_back(optimizer, self.parameters, kept.held, tensors)


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()
