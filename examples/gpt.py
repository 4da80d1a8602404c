"""A small GPT that learns to write Python from the standard library, byte by byte; any other text will do.

cordee train examples/gpt.py --out runs/gpt           (--set text=FILE: a text of your own)
python examples/gpt.py runs/gpt "def "                (the trained model goes on with these words)
"""

import math
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import cordee

WINDOW = 128  # bytes that the model looks back


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        three = self.query_key_value(self.before_attention(x)).unflatten(2, (3, -1, 32))
        query, key, value = three.permute(2, 0, 3, 1, 4)  # each (samples, heads, bytes, 32)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(WINDOW, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(self.bytes(x) + places)))  # (samples, bytes, 256)


def bits_per_byte(output: Tensor, target: Tensor) -> Tensor:
    """For each sample what a byte of it would take, compressed by this model: 8 bits if it knows nothing."""
    return nn.functional.cross_entropy(output.transpose(1, 2), target, reduction="none").mean(1) / math.log(2)


def job(text: str = "", files: int = 60, width: int = 128, layers: int = 2, lr: float = 3e-3) -> cordee.Job:
    # Sorted: every worker has to number the same samples, and folders are listed in no order.
    library = sorted(Path(os.__file__).parent.glob("*.py"))[:files]
    return cordee.Job(
        model=lambda: Gpt(width, layers),
        loss=lambda output, target: nn.functional.cross_entropy(output.flatten(0, 1), target.flatten()),
        optimizer=lambda params: torch.optim.AdamW(params, lr=lr),
        data=cordee.data.text(text or library, window=WINDOW, validation=0.05),
        batch=32,
        epochs=2,
        clip=1.0,
        metrics={"bits_per_byte": bits_per_byte},
    )


if __name__ == "__main__":  # not in workers: they import this file under another name
    model, written = cordee.load(sys.argv[1]), list(sys.argv[2].encode())
    for _ in range(400):
        seen = written[-WINDOW:]
        scores = model(torch.tensor([seen + [0] * (WINDOW - len(seen))]))[0, len(seen) - 1]
        written.append(int(torch.multinomial(scores.softmax(0), 1)))
    print(bytes(written).decode(errors="replace"))
