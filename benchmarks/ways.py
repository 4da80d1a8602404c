"""What each way of `sync=auto` loses: `python benchmarks/ways.py`, some minutes on a GPU, an hour on two cores.

A GPT of 1.1 million parameters learns the characters of tinyshakespeare (`--data`, or CORDEE_TEST_DATA, names the
folder of the text). All replicas are simulated in one process, with the package's codecs and its rule for learning
rates, so that no link and no clock has a part in it: the validation losses say what a way loses, by itself.

`behind`: what a window has come to is sent while the next one is computed, and applied at that one's end; `pulled 1`:
by the whole distance, where the package goes half of it.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from peers.machine import described
from peers.shakespeare import FILE, FOLDER, TASKS, data_folder, validation_loss
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from cordee.core.window import lift_of
from cordee.feed.order import Order
from cordee.sync.codec.seam import Summed
from cordee.sync.local import PULL
from cordee.sync.lossy import CODECS

RESULTS = Path(__file__).parent / "results" / "ways.json"
TASK = TASKS["small"]


class Way(NamedTuple):
    """How the replicas agree."""

    codec: str = "none"
    every: int = 0
    """Merged after so many steps; 0: gradients are added up in every step."""
    behind: bool = False
    lifts: bool = True
    pull: float = PULL

    def __str__(self) -> str:
        """As a plan says it."""
        if not self.every:
            return f"compress={self.codec}"
        words = [f"sync=local,local_steps={self.every}", f"compress={self.codec}"]
        words += ["merge=behind" + ("" if self.pull == PULL else f", pulled {self.pull:g}")] if self.behind else []
        return ",".join(words + ([] if self.lifts else ["local_lr=same"]))


WAYS = (
    *(Way(codec) for codec in ("none", "int8", "onebit", "powersgd", "topk")),
    *(Way("none", every) for every in (8, 32)),
    Way("none", 8, lifts=False),
    *(Way("int8", every) for every in (4, 8, 16, 32)),
    *(Way("int8", every, behind=True) for every in (4, 8, 16, 32)),
    Way("int8", 8, behind=True, pull=1.0),
    *(Way("onebit", every) for every in (8, 16, 32)),
)


class Sums:
    """Sums over all replicas by a codec, with error feedback; vectors stand for what replicas hold."""

    def __init__(self, codec: str, shapes: Sequence[torch.Size], replicas: int) -> None:
        """Nothing is left out yet."""
        self._codec, self._shapes = codec, shapes
        self._left_out: list[Tensor | float] = [0.0] * replicas
        self._memory: list[dict[int, Tensor]] = [{} for _ in range(replicas)]

    def sum(self, own: Sequence[Tensor]) -> Tensor:
        """Roughly the sum of what each replica has."""
        if self._codec == "none":
            return torch.stack(list(own)).sum(dim=0)
        flats = [one + rest for one, rest in zip(own, self._left_out, strict=True)]
        exchanges = [
            CODECS[self._codec](flat, self._windows(flat), memory)
            for flat, memory in zip(flats, self._memory, strict=True)
        ]
        messages = [next(one) for one in exchanges]
        while True:
            tensors = [message.tensor for message in messages]
            sums = isinstance(messages[0], Summed)
            answers = [torch.stack(tensors).sum(dim=0) if sums else tensors for _ in exchanges]
            ended: list[Tensor] = []
            for place, (exchange, answer) in enumerate(zip(exchanges, answers, strict=True)):
                try:
                    messages[place] = exchange.send(answer)
                except StopIteration as end:
                    ended.append(end.value)
            if ended:
                self._left_out = list(ended)
                return flats[0]

    def _windows(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


class Replicas:
    """All replicas of a training, in one process."""

    def __init__(self, way: Way, count: int, device: str) -> None:
        """With the same first weights."""
        first = TASK.model().to(device)
        self.way = way
        self.models = [first] if not way.every and way.codec == "none" else [copy.deepcopy(first) for _ in range(count)]
        shapes = [one.shape for one in first.parameters()]
        self._sums = Sums(way.codec, shapes, count)
        self._sizes = [shape.numel() for shape in shapes]
        lift = lift_of([1 / count] * count) if way.every and way.lifts else 1.0
        decay = 0.01  # AdamW's own; decoupled, so it stays what it is when the learning rate is lifted
        self._optimizers = [
            torch.optim.AdamW(model.parameters(), lr=TASK.lr * lift, weight_decay=decay / lift, fused=device != "cpu")
            for model in self.models
        ]
        self._base = self._weights(0)
        """Of each window: where its ways begin. Behind, each replica has its own."""
        self._bases = [self._base.clone() for _ in self.models]
        self._under_way: list[Tensor] = []

    def step(self, x: Tensor, y: Tensor, number: int) -> None:
        """One global batch."""
        for model, own_x, own_y in zip(self.models, x.chunk(len(self.models)), y.chunk(len(self.models)), strict=True):
            TASK.loss(model(own_x), own_y).backward()
        if not self.way.every and len(self.models) > 1:
            self._add_up_gradients()
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.way.every and (number + 1) % self.way.every == 0:
            self._merge()

    @torch.no_grad()
    def conclude(self) -> nn.Module:
        """The model, with nothing under way."""
        if self.way.every:  # what follows the last merge
            ways = [self._weights(place) - base for place, base in enumerate(self._bases)]
            if self._under_way:
                self._base += self._sums.sum([way / len(self._under_way) for way in self._under_way])
            self._put(0, self._base + torch.stack(ways).mean(dim=0))
        return self.models[0]

    @torch.no_grad()
    def _add_up_gradients(self) -> None:
        own = [torch.cat([p.grad.view(-1) for p in model.parameters()]) for model in self.models]  # type: ignore[union-attr]
        total = self._sums.sum([one / len(own) for one in own])
        for model in self.models:
            for parameter, part in zip(model.parameters(), total.split(self._sizes), strict=True):
                parameter.grad = part.view_as(parameter).clone()

    @torch.no_grad()
    def _merge(self) -> None:
        ways = [self._weights(place) - base for place, base in enumerate(self._bases)]
        if self._under_way:
            self._apply(ways)
        if self.way.behind:
            self._under_way = ways
            self._bases = [self._weights(place) for place in range(len(self.models))]
            return
        mean = self._sums.sum([way / len(ways) for way in ways])
        self._base += mean
        for place in range(len(self.models)):
            self._put(place, self._base)
        self._bases = [self._base] * len(self.models)

    def _apply(self, ways: Sequence[Tensor]) -> None:
        """What was under way has come: each replica goes from its own way towards the mean of all."""
        self._base += self._sums.sum([way / len(self._under_way) for way in self._under_way])
        for place, way in enumerate(ways):
            self._put(place, torch.lerp(self._weights(place), self._base + way, self.way.pull))

    def _weights(self, place: int) -> Tensor:
        return parameters_to_vector(self.models[place].parameters()).detach().clone()

    @torch.no_grad()
    def _put(self, place: int, vector: Tensor) -> None:
        for parameter, part in zip(self.models[place].parameters(), vector.split(self._sizes), strict=True):
            parameter.copy_(part.view_as(parameter))


def train(way: Way, given: argparse.Namespace, seed: int) -> float:
    """The validation loss after all steps."""
    x, y = (part.to(given.device) for part in TASK.data())
    order = Order(len(x), TASK.batch, seed=seed, drop_last=True)
    replicas = Replicas(way, given.replicas, given.device)
    for number in range(given.steps):
        epoch, step = divmod(number, order.steps)
        ids = torch.as_tensor(order.span(epoch, range(step, step + 1)), device=given.device)
        replicas.step(x[ids], y[ids], number)
    return validation_loss(replicas.conclude().cpu())


def main() -> None:
    """Train by each way, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=2, help="of the order of samples; default: %(default)s")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help=f"the folder of {FILE}; default: {FOLDER}, or ../shared/data")
    parser.add_argument("--record", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="ways whose words hold this")
    given = parser.parse_args()
    if given.data is not None:
        os.environ[FOLDER] = str(given.data.resolve())
    if not (data_folder() / FILE).is_file():
        sys.exit(f"{FILE} is not in {data_folder()}: name its folder with --data or {FOLDER}")
    losses: dict[str, list[float]] = {}
    for way in (one for one in WAYS if given.only in str(one)):
        began = time.perf_counter()
        losses[str(way)] = [round(train(way, given, seed), 5) for seed in range(given.seeds)]
        mean = statistics.mean(losses[str(way)])
        print(f"{mean:.4f}  {losses[str(way)]}  {way}  {time.perf_counter() - began:.0f} s", flush=True)
    result = {**described(), "device": given.device, "steps": given.steps, "replicas": given.replicas}
    result["validation_loss"] = losses
    if not given.only:
        given.record.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {given.record}")


if __name__ == "__main__":
    main()
