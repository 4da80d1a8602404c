"""What is trained in the comparison on a GPU: models of several kinds, with a loss or with an objective.

GPT-2 (124 million parameters) with its loss apart and with its loss in the objective; a masked language model whose
loss is the mean over its masked tokens; ResNet-18 and a vision transformer on CIFAR's images, the latter flipped at
random in the objective. `resnet18_bytes` has images of uint8, which are cropped, flipped and scaled on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 50_304
"""GPT-2's 50,257 tokens, rounded up to a multiple of 64 as everybody does."""
LENGTH = 1_024


@dataclass(frozen=True)
class GpuTask:
    """A model with its loss or objective, data, optimizer and batch; `unit` is what throughput counts."""

    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor] | None
    data: Callable[[], tuple[Tensor, Tensor]]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    batch: int
    chunk: int
    """Steps of a turn."""
    unit: str
    units: int
    """Of these in a step."""
    objective: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None
    """The loss of a model, an input and a target, where it is more than a function of output and target."""
    weigh: Callable[[Tensor], Tensor] | None = None
    """What a target weighs, where the loss is not the mean over its samples."""
    augment: Callable[[Tensor, Tensor], Tensor] | None = None
    """What is done to inputs on the device, with three random numbers in [0, 1) for each."""

    augment_one: Callable[[Tensor], Tensor] | None = None
    """The same to one input, by random numbers of its own."""

    def augmented(self, x: Tensor) -> Tensor:
        """Inputs as the model gets them, by random numbers of the device's own; Cordée draws its own per sample."""
        return x if self.augment is None else self.augment(x, torch.rand(len(x), 3, device=x.device))

    def augmented_one(self, x: Tensor) -> Tensor:
        """One input, augmented on the processor by slices and a flip, the quickest way there."""
        return x if self.augment_one is None else self.augment_one(x)

    def compute(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The loss of one batch."""
        if self.objective is not None:
            return self.objective(model, x, y)
        assert self.loss is not None
        return self.loss(model(x), y)


class Block(nn.Module):
    """A transformer block of GPT-2."""

    def __init__(self, width: int, heads: int, *, causal: bool = True) -> None:
        """Make the layers."""
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixing, self.joining = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        query, key, value = self.mixing(self.before(x)).split(width, dim=2)
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (one.view(shape).transpose(1, 2) for one in (query, key, value))
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.joining(seen.transpose(1, 2).reshape(batch, length, width))
        y: Tensor = x + self.wide(self.after(x))
        return y


class Gpt2(nn.Module):
    """Twelve blocks of width 768, 12 heads, the output layer tied to the embedding: 124 million parameters."""

    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12, *, causal: bool = True) -> None:
        """Make the layers."""
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=causal) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length) to (batch, length, vocabulary)."""
        x = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(self.norm(x))
        return y


class Vit(nn.Module):
    """A vision transformer for images of 32 x 32, in patches of 4 x 4: 21 million parameters."""

    def __init__(self, width: int = 384, depth: int = 12, heads: int = 6) -> None:
        """Make the layers."""
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(torch.zeros(1, 64, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 32, 32) to (batch, 10)."""
        y: Tensor = self.patches(x).flatten(2).transpose(1, 2) + self.places
        y = self.head(self.norm(self.blocks(y)).mean(1))
        return y


class Residual(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        """Make the layers."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        same = inner == outer and stride == 1
        cut = [] if same else [nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)]
        self.short = nn.Sequential(*cut)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inner, height, width) to (batch, outer, height / stride, width / stride)."""
        return functional.relu(self.body(x) + self.short(x))


def resnet18() -> nn.Module:
    """ResNet-18 as it is used for images of 32 x 32: 11.2 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    inner = 64
    for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inner, outer, stride), Residual(outer, outer, 1)]
        inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def _texts() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(50_257, (2_048, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _images() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(50_000, 3, 32, 32), torch.randint(10, (50_000,))


def _byte_images() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (50_000,))


def cropped_and_flipped(x: Tensor, draws: Tensor) -> Tensor:
    """As is usual for CIFAR: 4 pixels of black around, a window of 32 x 32 of that, flipped or not, scaled."""
    size = x.shape[-1]
    places = torch.arange(size, device=x.device)
    moved = (draws * 9).long()
    rows = places + moved[:, :1]
    columns = torch.where(draws[:, 2:] < 0.5, places, size - 1 - places) + moved[:, 1:2]
    padded = functional.pad(x, (4, 4, 4, 4))
    samples = torch.arange(len(x), device=x.device)
    chosen = padded[
        samples[:, None, None, None],
        torch.arange(x.shape[1], device=x.device)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    return (chosen.float() - 127.5) / 64


def one_cropped_and_flipped(x: Tensor) -> Tensor:
    """The same to one image."""
    size = x.shape[-1]
    row, column, flipped = int(torch.randint(9, ())), int(torch.randint(9, ())), bool(torch.rand(()) < 0.5)
    window = functional.pad(x, (4, 4, 4, 4))[:, row : row + size, column : column + size]
    return ((window.flip(2) if flipped else window).float() - 127.5) / 64


def _next_token(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _masked_texts() -> tuple[Tensor, Tensor]:
    """A seventh of the tokens is masked by token 0 and asked for; -100 says of the others that they are not."""
    tokens, _ = _texts()
    asked = torch.rand(tokens.shape) < 0.15
    return torch.where(asked, 0, tokens), torch.where(asked, tokens, -100)


def _of_tokens(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def _of_flipped(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    flipped = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
    return functional.cross_entropy(model(torch.where(flipped, x.flip(3), x)), y, label_smoothing=0.1)


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.1, fused=True)


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)


TASKS = {
    "gpt2": GpuTask(Gpt2, _next_token, _texts, _adamw, 32, 15, "tokens", 32 * LENGTH),
    "resnet18": GpuTask(resnet18, functional.cross_entropy, _images, _sgd, 512, 90, "images", 512),
    "gpt2_objective": GpuTask(Gpt2, None, _texts, _adamw, 32, 15, "tokens", 32 * LENGTH, _of_tokens),
    "masked": GpuTask(
        partial(Gpt2, causal=False), None, _masked_texts, _adamw, 32, 15, "tokens", 32 * LENGTH, _of_tokens,
        weigh=lambda target: (target != -100).sum(),
    ),
    "resnet18_bytes": GpuTask(
        resnet18, functional.cross_entropy, _byte_images, _sgd, 512, 90, "images", 512,
        augment=cropped_and_flipped, augment_one=one_cropped_and_flipped,
    ),
    "vit_flip": GpuTask(Vit, None, _images, _adamw, 512, 30, "images", 512, _of_flipped),
}  # fmt: skip
"""By name. Everybody computes in bf16, compiled, with a fused optimizer."""
