"""The other half of the table: objectives that several workers would train differently, and what must be said of them.

Importing this module enters them behind those of `objectives`.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from objectives import (
    CLASSES,
    HOLES,
    TOKENS,
    WEIGHTS,
    WIDTH,
    Experts,
    Speaker,
    X,
    Y,
    case,
    cross_entropy,
    plain,
    small,
)

MIXED = "not the mean of its parts"
SUM = "is a sum, not a mean"


def noisy(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x)


def contrast(one: Tensor, other: Tensor) -> Tensor:
    return cross_entropy(one @ other.T, torch.arange(len(one), device=one.device))


# ------------------------------------------------------------- mixing


@case(f"(?s){MIXED}.*cordee.gather")
def contrastive(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x)
    return contrast(out, out)


@case(f"(?s){MIXED}.*cordee.gather")
def contrastive_with_noise(model: nn.Module, batch: Any) -> Tensor:
    return contrast(model(noisy(batch.x)), model(noisy(batch.x)))


@case(MIXED)
def contrastive_with_noise_of_numpy(model: nn.Module, batch: Any) -> Tensor:
    noise = torch.as_tensor(np.random.randn(*batch.x.shape), dtype=batch.x.dtype, device=batch.x.device)
    return contrast(model(batch.x), model(batch.x + 0.1 * noise))


@case(MIXED)
def contrastive_with_a_scale_of_python(model: nn.Module, batch: Any) -> Tensor:
    return contrast(model(batch.x), model(batch.x * random.uniform(0.9, 1.1)))


@case(MIXED)
def contrastive_beside_a_plain_loss(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x)
    return cross_entropy(out, batch.y) + 1e-3 * contrast(out, out)


@case(MIXED)
def triplets_of_neighbours(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x)
    return functional.triplet_margin_loss(out, out.roll(1, 0), out.roll(2, 0))


@case(MIXED)
def pairs(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x)
    return (out - out.flip(0)).square().mean()


@case(MIXED)
def mixup(model: nn.Module, batch: Any) -> Tensor:
    share, order = torch.rand((), device=batch.x.device), torch.randperm(len(batch.x), device=batch.x.device)
    out = model(share * batch.x + (1 - share) * batch.x[order])
    return share * cross_entropy(out, batch.y) + (1 - share) * cross_entropy(out, batch.y[order])


@case(MIXED)
def centred_outputs(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x)
    return cross_entropy(out - out.mean(0), batch.y)


@case(f"(?s){MIXED}.*gradients differ")
def centred_behind_an_equal_loss(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x)
    return cross_entropy(out - out.mean(0) + out.mean(0).detach(), batch.y)


@case(MIXED)
def whitened_advantages(model: nn.Module, batch: Any) -> Tensor:
    policy = torch.distributions.Categorical(logits=model(batch.x))
    action = policy.sample()  # type: ignore[no-untyped-call]
    reward = (action == batch.y).float() + batch.x[:, 0]
    return -(policy.log_prob(action) * (reward - reward.mean())).mean()  # type: ignore[no-any-return, no-untyped-call]


@case(MIXED)
def root_of_the_mean(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch.x)[:, 0] - batch.x.sum(1)).square().mean().sqrt()


@case(MIXED)
def the_worst_sample(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y, reduction="none").max()


@case(MIXED)
def correlation(model: nn.Module, batch: Any) -> Tensor:
    return -torch.corrcoef(torch.stack([model(batch.x)[:, 0], batch.x[:, 0]]))[0, 1]


@case(MIXED)
def dice_over_the_batch(model: nn.Module, batch: Any) -> Tensor:
    guess, truth = model(batch.x).softmax(1), functional.one_hot(batch.y, CLASSES)
    return 1 - 2 * (guess * truth).sum() / (guess.sum() + truth.sum() + guess.square().sum())


@case(MIXED)
def balanced_use_of_classes(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x)
    return cross_entropy(out, batch.y) + 1e-2 * out.softmax(1).mean(0).square().sum()


@case(MIXED, model=Experts)
def experts_used_evenly(model: Any, batch: Any) -> Tensor:
    return plain(model, batch) + 1e-3 * model.balance


@case(MIXED)
def decorrelated_outputs_with_noise(model: nn.Module, batch: Any) -> Tensor:
    one, other = model(noisy(batch.x)), model(noisy(batch.x))
    return ((one - one.mean(0)).T @ (other - other.mean(0)) / len(one)).square().sum()


@case(MIXED)
def half_precision_contrast(model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast(batch.x.device.type, dtype=torch.bfloat16):
        out = model(batch.x)
    return contrast(out.float(), out.float())


@case(MIXED)
def negatives_drawn_from_the_batch(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x)
    other = out[torch.randint(len(out), (len(out),), device=out.device)]
    return functional.softplus((out * other).sum(1)).mean()


class OwnNorm(nn.Module):
    """Normalises by the statistics of its batch, without being a BatchNorm."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.std(0) + 1.0)


case(MIXED, "a norm of its own", model=lambda: nn.Sequential(nn.Linear(WIDTH, 8), OwnNorm(), nn.Linear(8, CLASSES)))(
    plain
)


@case("broadcasting", data=(X, X.sum(1)), model=lambda: nn.Linear(WIDTH, 1))
def broadcast_targets(model: nn.Module, batch: Any) -> Any:
    out = model(batch.x)
    return functional.mse_loss(out, batch.y), out


@case("broadcasting", data=(X, X.sum(1)), model=lambda: nn.Linear(WIDTH, 1))
def broadcast_targets_with_noise(model: nn.Module, batch: Any) -> Any:
    out = model(noisy(batch.x))
    return (out - batch.y).square().mean(), out


# ------------------------------------------------------------- sums, and other normalisers


@case(SUM)
def sum_over_samples(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y, reduction="sum")


@case(SUM)
def sum_with_noise(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(noisy(batch.x)), batch.y, reduction="sum")


@case(SUM, model=lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)))
def sum_with_dropout(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y, reduction="sum")


@case(SUM)
def sum_with_a_generator_of_numpy(model: nn.Module, batch: Any) -> Tensor:
    noise = torch.as_tensor(np.random.default_rng().standard_normal(batch.x.shape), dtype=batch.x.dtype)
    return cross_entropy(model(batch.x + 0.1 * noise.to(batch.x.device)), batch.y, reduction="sum")


@case(SUM)
def sum_in_a_loop_with_draws_of_python(model: nn.Module, batch: Any) -> Tensor:
    scale = torch.tensor([random.random() for _ in range(len(batch.x))], device=batch.x.device)
    return (cross_entropy(model(batch.x), batch.y, reduction="none") * scale).sum()


@case(MIXED)
def one_less_than_samples(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y, reduction="sum") / (len(batch.x) - 0.5)


@case(MIXED)
def mean_over_what_was_kept(model: nn.Module, batch: Any) -> Tensor:
    keep = (torch.rand_like(batch.x) < 0.6).float()
    return ((model(batch.x)[:, :1] - batch.x).square() * keep).sum() / keep.sum()


@case(MIXED, model=lambda: Speaker(), data=(TOKENS, TOKENS))
def masked_tokens(model: nn.Module, batch: Any) -> Tensor:
    masked = torch.rand(batch.x.shape, device=batch.x.device) < 0.4
    return cross_entropy(model(batch.x.masked_fill(masked, 0))[masked], batch.y[masked])


@case("weigh=lambda batch: weights\\[batch.y\\].sum\\(\\)")
def class_weights(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y, weight=WEIGHTS.to(batch.x.device))


@case("weigh=lambda batch: \\(batch.y != -100\\).sum\\(\\)", data=(X, HOLES))
def ignored_targets(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y)


RARE_HOLES = Y.repeat(11)[:1003].clone()
RARE_HOLES[[701, 902]] = -100
MANY = X.repeat(11, 1)[:1003]


@case("weigh=lambda batch: \\(batch.y != -100\\).sum\\(\\)", data=(MANY, RARE_HOLES))
def two_ignored_targets_among_a_thousand(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y)


SHIFTED = TOKENS.clone()
SHIFTED[77, 3] = -100


@case(
    '\\(batch.fields\\["labels"\\]\\[:, 1:\\] != -100\\).sum\\(\\)',
    model=lambda: Speaker(),
    data={"x": TOKENS, "labels": SHIFTED},
)
def one_ignored_token(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x)[:, :-1].reshape(-1, 11), batch.fields["labels"][:, 1:].reshape(-1))


RARE_CLASS = (torch.arange(1003) % 2).clone()
RARE_CLASS[555] = 2


@case("weights\\[batch.y\\].sum", data=(MANY, RARE_CLASS))
def a_weight_on_a_rare_class(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y, weight=torch.tensor([1.0, 1.0, 20.0], device=batch.x.device))


@case("what `weigh` says", fields={"weigh": lambda batch: float(len(batch) ** 2)})
def a_weight_that_does_not_add_up(model: nn.Module, batch: Any) -> Tensor:
    return plain(model, batch)


@case("what `weigh` says", fields={"weigh": lambda batch: (batch.y + 1).sum()})
def a_weight_that_does_not_match(model: nn.Module, batch: Any) -> Tensor:
    return plain(model, batch)


# ------------------------------------------------------------- state


class Centred(nn.Module):
    """Keeps a moving centre of its outputs, or something else that is computed from its batch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.body = kind, small()
        self.register_buffer("centre", torch.zeros(CLASSES))
        self.queue: list[Tensor] = []
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        found = out.detach()
        self.count += 1
        if self.kind == "sum":
            self.centre = 0.9 * self.centre + 0.1 * found.sum(0)
        elif self.kind == "mean":
            out, self.centre = out - self.centre, 0.9 * self.centre + 0.1 * found.mean(0)
            return out
        elif self.kind == "largest":
            torch.maximum(self.centre, found.max(0).values, out=self.centre)
        elif self.kind == "queue":
            self.queue.append(found.mean(0))
            out = out - 0.1 * torch.stack(self.queue).mean(0)
        elif self.kind == "log":
            self.queue.append(found.mean())
        elif self.kind == "counter":
            out = out * min(1.0, 0.5 + self.count / 100)
        return out - self.centre


case("'centre'", "a centre that is a sum", model=lambda: Centred("sum"))(plain)
case("'centre'", "the largest output so far", model=lambda: Centred("largest"))(plain)
case("keeps state from its batches.*queue", "a queue of former outputs", model=lambda: Centred("queue"))(plain)
case("right", "a centre that is a mean", model=lambda: Centred("mean"))(plain)
case("right", "a log of outputs", model=lambda: Centred("log"))(plain)
case("right", "a factor that grows with the steps", model=lambda: Centred("counter"))(plain)


@case("warned")
def a_loss_without_end(model: nn.Module, batch: Any) -> Tensor:
    return plain(model, batch) + 1e-2 * float(np.random.RandomState().rand())
