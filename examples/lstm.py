"""An LSTM that learns to spell the names of Unicode characters: sequences of unequal length, where letters weigh.

cordee train examples/lstm.py
cordee train examples/lstm.py --workers 3 --plan "proportions=5:3:2"     (learns the same)
"""

import math
import unicodedata

import numpy as np
import torch
from torch import Tensor, nn

import cordee

LENGTH = 48  # shorter names are filled up
END = 0  # stands before and behind every name
NOTHING = -1  # what is not to be learnt: the places behind the end of a name


class Speller(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(128, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.letters(x))[0])  # (samples, LENGTH, 128)


def loss(output: Tensor, target: Tensor) -> Tensor:
    """The mean over the letters, not over the names."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=NOTHING)


def letters(batch) -> float:
    """What a batch weighs: the number of values that the loss is a mean over.

    Workers get as many names each, but not as many letters. Weighed by names, a letter would count for more where the
    names happen to be short, and what is learnt would depend on how the batch is shared.
    """
    return float((batch.y != NOTHING).sum())


def bits_per_letter(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and count, because a metric that gives one value a sample would weigh names."""
    total = nn.functional.cross_entropy(output.transpose(1, 2), target, ignore_index=NOTHING, reduction="sum")
    return total / math.log(2), (target != NOTHING).sum()


def names() -> tuple[np.ndarray, np.ndarray]:
    """The letters of every name, and the letter that follows each of them."""
    every = (unicodedata.name(chr(code), "") for code in range(0x20000))
    # Tens of thousands of ideographs and syllables have numbers and sounds for names: nothing to learn from.
    chosen = [name.encode() for name in every if 0 < len(name) < LENGTH and "-" not in name and "SYLLABLE" not in name]
    x, y = np.full((len(chosen), LENGTH), END), np.full((len(chosen), LENGTH), NOTHING)
    for place, name in enumerate(chosen):
        x[place, 1 : len(name) + 1] = y[place, : len(name)] = list(name)
        y[place, len(name)] = END
    return x, y


def job(width: int = 128, lr: float = 3e-3) -> cordee.Job:
    return cordee.Job(
        model=lambda: Speller(width),
        loss=loss,
        weigh=letters,
        optimizer=lambda params: torch.optim.AdamW(params, lr=lr),
        data=cordee.data.arrays(*names(), validation=0.1),
        batch=64,
        epochs=2,
        clip=1.0,
        metrics={"bits_per_letter": bits_per_letter},
    )
