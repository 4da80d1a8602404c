"""The tasks of `network.py`: a GPT that learns the characters of tinyshakespeare, in two sizes."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from peers.tasks import Gpt, Task
from torch import Tensor, nn
from torch.nn import functional

from cordee.feed.order import Order

FOLDER = "CORDEE_TEST_DATA"
"""The environment variable with the folder that holds the text."""
FILE = "tinyshakespeare.txt"
WINDOW = 64
TRAINED = 16_000
"""Windows of the training part, 92 % of the text."""
EPOCH = 200
"""Steps of an epoch of the small model, over every second window. Merges every 8 and every 50 steps end with it."""
VALIDATED = 256
"""Windows of the rest that the validation loss is measured on."""
SEED = 0


def data_folder() -> Path:
    """Where the text is expected: as the environment says, or in `shared/data` beside the repository."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"


@dataclass(frozen=True)
class TextTask(Task):
    """A task with a validation loss; all systems begin with the same weights."""

    lr: float = 1e-4
    validated: bool = False
    """Whether the model is kept after each turn, to measure its loss later."""

    def optimizer(self, parameters: object) -> torch.optim.Optimizer:
        """AdamW, as all systems get it."""
        return torch.optim.AdamW(parameters, lr=self.lr, fused=True)  # type: ignore[arg-type]

    def keeper_of(self, model: Callable[[], nn.Module], path: str) -> Callable[[], str] | None:
        """What writes the model that `model` gives into a new file beside `path`; None where it is not kept."""
        paths = (f"{path}.{number}" for number in itertools.count())

        def keep() -> str:
            torch.save(model().state_dict(), path := next(paths))
            return path

        return keep if self.validated else None

    def loss_of(self, path: str) -> float:
        """The validation loss of a model that was kept."""
        model = self.model()
        model.load_state_dict(torch.load(path, weights_only=True))
        return validation_loss(model)


@functools.cache
def _windows() -> tuple[Tensor, Tensor]:
    """All windows of the text, one behind the other, and the same one character further."""
    text = torch.frombuffer(bytearray((data_folder() / FILE).read_bytes()), dtype=torch.uint8).long()
    count = (len(text) - 1) // WINDOW
    return text[: count * WINDOW].view(count, WINDOW), text[1 : count * WINDOW + 1].view(count, WINDOW)


def _train(every: int) -> tuple[Tensor, Tensor]:
    x, y = _windows()
    return x[:TRAINED:every].contiguous(), y[:TRAINED:every].contiguous()


def epoch_of(number: int, samples: int, batch: int) -> list[int]:
    """The samples of an epoch, one global batch behind the other: Cordée takes the same ones."""
    order = Order(samples, batch, seed=SEED, drop_last=True)
    ids: list[int] = order.span(number, range(order.steps)).tolist()
    return ids


def shares(samples: int, batch: int, rank: int, size: int) -> Iterator[Tensor]:
    """The ids of this rank's part of every batch, epoch after epoch."""
    for number in itertools.count():
        for ids in torch.tensor(epoch_of(number, samples, batch)).split(batch):
            yield ids[batch * rank // size : batch * (rank + 1) // size]


def validation_loss(model: nn.Module) -> float:
    """The mean loss per character over windows from all of the validation part."""
    x, y = (part[TRAINED:] for part in _windows())
    ids = torch.linspace(0, len(x) - 1, VALIDATED).long()
    model.eval()
    with torch.no_grad():
        losses = [_next_character(model(x[some]), y[some]) for some in ids.split(64)]
    model.train()
    return float(torch.stack(losses).mean())


def _next_character(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _gpt(**sizes: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return Gpt(WINDOW, **sizes)


TASKS = {
    "gpt": TextTask(_gpt, _next_character, functools.partial(_train, 1), batch=16, chunk=4),
    "small": TextTask(
        functools.partial(_gpt, width=128, depth=5, heads=4),
        _next_character, functools.partial(_train, 2), batch=40, chunk=4, lr=2e-3, validated=True,
    ),
}  # fmt: skip
"""By name: 4.9 million parameters for the throughput, 1.1 million for the time until a loss is reached."""
