"""A table of objectives with known truth: what the preflight must say of each of them.

`right`: accepted without a word. `wrong`: refused, with words that tell why. `warned`: accepted, and it is said that
it could not be checked. They are deterministic, or draw with torch, NumPy or Python.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

COUNT, WIDTH, CLASSES, LENGTH = 96, 6, 3, 5
cross_entropy = functional.cross_entropy
_numbers = torch.Generator().manual_seed(0)
X = torch.randn(COUNT, WIDTH, generator=_numbers)
Y = torch.arange(COUNT) % CLASSES
TOKENS = torch.randint(1, 11, (COUNT, LENGTH), generator=_numbers)
WEIGHTS = torch.tensor([1.0, 5.0, 9.0])


@dataclass(frozen=True)
class Case:
    """One objective and what must happen to it."""

    name: str
    expected: str
    """`right`, `warned`, or words of the refusal."""
    objective: Callable[[nn.Module, Any], Any]
    model: Callable[[], nn.Module] = lambda: small()
    data: Any = (X, Y)
    fields: dict[str, Any] = field(default_factory=dict)


CASES: list[Case] = []


def case(expected: str, name: str = "", **settings: Any) -> Callable[..., Any]:
    """Enter the function below as an objective."""

    def enter(objective: Callable[..., Any]) -> Callable[..., Any]:
        given = name or objective.__name__.replace("_", " ")
        CASES.append(Case(given, expected, objective, **settings))
        return objective

    return enter


def small() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def with_layers(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(WIDTH, 8), *layers, nn.Linear(8, CLASSES))


def plain(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y)


def rows(x: Tensor, draw: Callable[[], Any]) -> Tensor:
    """Numbers drawn elsewhere, on the device of x."""
    return torch.as_tensor(np.asarray([draw() for _ in range(len(x))]), dtype=x.dtype, device=x.device)


# ------------------------------------------------------------- right, deterministic

for _name, _layers in {
    "cross-entropy": (),
    "BatchNorm": (nn.BatchNorm1d(8),),
    "BatchNorm without running statistics": (nn.BatchNorm1d(8, track_running_stats=False),),
    "LayerNorm": (nn.LayerNorm(8),),
    "GroupNorm": (nn.GroupNorm(2, 8),),
    "dropout": (nn.Dropout(0.5),),
    "alpha dropout": (nn.AlphaDropout(0.3),),
    "randomised leaky ReLU": (nn.RReLU(),),
    "spectral norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),),
}.items():
    case("right", _name, model=with_layers(*_layers))(plain)


@case("right")
def output_with_the_loss(model: nn.Module, batch: Any) -> Any:
    out = model(batch.x)
    return cross_entropy(out, batch.y), out


@case("right")
def mean_square_error(model: nn.Module, batch: Any) -> Tensor:
    return functional.mse_loss(model(batch.x)[:, 0], batch.x.sum(1))


@case("right")
def label_smoothing(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y, label_smoothing=0.1)


@case("right")
def equal_class_weights(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y, weight=torch.full((CLASSES,), 2.0, device=batch.x.device))


@case("right")
def an_ignored_value_that_no_target_has(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y, ignore_index=99)


@case("right", fields={"weigh": lambda batch: WEIGHTS.to(batch.y.device)[batch.y].sum()})
def class_weights_declared(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y, weight=WEIGHTS.to(batch.x.device))


HOLES = torch.where(torch.arange(COUNT) % 4 == 1, -100, Y)


@case("right", data=(X, HOLES), fields={"weigh": lambda batch: (batch.y != -100).sum()})
def ignored_targets_declared(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y)


@case("right")
def weight_decay_in_the_loss(model: nn.Module, batch: Any) -> Tensor:
    return plain(model, batch) + 1e-3 * sum(one.square().sum() for one in model.parameters())


@case("right")
def gradient_penalty(model: nn.Module, batch: Any) -> Tensor:
    x = batch.x.clone().requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return cross_entropy(out, batch.y) + slope.square().sum(1).mean()


@case("right")
def a_gradient_that_is_zero_up_to_rounding(model: nn.Module, batch: Any) -> Tensor:
    return model(batch.x).softmax(1).sum(1).mean()


@case("right", model=lambda: zeroed(nn.Linear(WIDTH, CLASSES)))
def a_model_that_begins_with_zeros(model: nn.Module, batch: Any) -> Tensor:
    return plain(model, batch)


def zeroed(model: nn.Module) -> nn.Module:
    for one in model.parameters():
        nn.init.zeros_(one)
    return model


@case("right", model=lambda: nn.Linear(WIDTH, CLASSES).bfloat16())
def half_precision(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x.bfloat16()).float(), batch.y)


@case("right", model=lambda: small().double(), data=(X.double(), Y))
def double_precision(model: nn.Module, batch: Any) -> Tensor:
    return plain(model, batch)


class Speaker(nn.Module):
    """A language model of one layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        return self.head(hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0])  # type: ignore[no-any-return]


@case("right", model=Speaker, data=(TOKENS, TOKENS))
@case("right", "attention with dropout", model=lambda: Speaker(0.3), data=(TOKENS, TOKENS))
def next_token(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x)[:, :-1].reshape(-1, 11), batch.y[:, 1:].reshape(-1))


@case("right", model=lambda: Recurrent(), data=(X[:, :, None], Y))
def recurrent_with_dropout(model: nn.Module, batch: Any) -> Tensor:
    return plain(model, batch)


class Recurrent(nn.Module):
    """Two layers of an LSTM with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 5, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


class Deep(nn.Module):
    """A transformer whose layers are computed anew in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        return functional.linear(hidden, self.embedding.weight)


case("right", "checkpointed layers with dropout", model=Deep, data=(TOKENS, TOKENS))(next_token)


class Experts(nn.Module):
    """Every sample goes to one of four layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(4))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).softmax(1)
        chosen = gates.argmax(1)
        out = torch.stack([expert(x) for expert in self.experts], 1)[torch.arange(len(x)), chosen]
        self.balance = (functional.one_hot(chosen, 4).float().mean(0) * gates.mean(0)).sum()
        return out * gates.amax(1, keepdim=True)  # type: ignore[no-any-return]


case("right", "experts", model=Experts)(plain)

# ------------------------------------------------------------- right, with draws


@case("right")
def noise_per_sample(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x + 0.3 * torch.randn_like(batch.x)), batch.y)


@case("right")
def a_random_flip_per_sample(model: nn.Module, batch: Any) -> Tensor:
    flip = torch.rand(len(batch.x), 1, device=batch.x.device) < 0.5
    return cross_entropy(model(torch.where(flip, batch.x.flip(1), batch.x)), batch.y)


@case("right")
def a_random_flip_per_batch(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x.flip(1) if torch.rand(()) < 0.5 else batch.x), batch.y)


@case("right")
def time_first_noise(model: nn.Module, batch: Any) -> Tensor:
    noise = torch.randn(4 * len(batch.x), device=batch.x.device).view(4, -1).sum(0)
    return (model(batch.x)[:, 0] * noise).square().mean()


@case("right")
def one_draw_per_sample_in_a_loop(model: nn.Module, batch: Any) -> Tensor:
    scales = torch.stack([torch.rand((), device=batch.x.device) for _ in range(len(batch.x))])
    return cross_entropy(model(batch.x * scales[:, None]), batch.y)


@case("right")
def dropped_tokens_over_samples(model: nn.Module, batch: Any) -> Tensor:
    keep = torch.bernoulli(torch.full((len(batch.x), WIDTH), 0.7, device=batch.x.device))
    return ((model(batch.x)[:, :1] * batch.x * keep).square().sum(1) / WIDTH).mean()


@case("right")
def masked_mean_within_a_sample(model: nn.Module, batch: Any) -> Tensor:
    keep = (torch.rand_like(batch.x) < 0.7).float()
    each = ((model(batch.x)[:, :1] - batch.x).square() * keep).sum(1) / keep.sum(1).clamp(min=1)
    return each.mean()


@case("right")
def shuffled_samples(model: nn.Module, batch: Any) -> Tensor:
    order = torch.randperm(len(batch.x), device=batch.x.device)
    return cross_entropy(model(batch.x[order]), batch.y[order])


@case("right")
def variational_code(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch.x)
    code = torch.distributions.Normal(out, 1.0).rsample()
    return ((code - batch.y[:, None]).square().sum(1) + 0.1 * out.square().sum(1)).mean()


@case("right")
def gumbel_choice(model: nn.Module, batch: Any) -> Tensor:
    return (functional.gumbel_softmax(model(batch.x), tau=0.7) * batch.x[:, :CLASSES]).sum(1).mean()


@case("right")
def policy_gradient(model: nn.Module, batch: Any) -> Tensor:
    policy = torch.distributions.Categorical(logits=model(batch.x))
    action = policy.sample()  # type: ignore[no-untyped-call]
    return -(policy.log_prob(action) * (action == batch.y)).mean()  # type: ignore[no-any-return, no-untyped-call]


@case("right")
def diffusion_at_random_times(model: nn.Module, batch: Any) -> Tensor:
    time = torch.randint(0, 10, (len(batch.x), 1), device=batch.x.device)
    noise = torch.randn_like(batch.x)
    return (model(batch.x + noise * time / 10)[:, :1] - noise).square().mean()


@case("right")
def sharpness_drawn_from_beta(model: nn.Module, batch: Any) -> Tensor:
    scale = torch.distributions.Beta(0.4, 0.4).sample((len(batch.x), 1)).to(batch.x.device)
    return cross_entropy(model(batch.x * scale), batch.y)


@case("right")
def noise_of_numpy(model: nn.Module, batch: Any) -> Tensor:
    noise = torch.as_tensor(np.random.randn(*batch.x.shape), dtype=batch.x.dtype, device=batch.x.device)
    return cross_entropy(model(batch.x + 0.3 * noise), batch.y)


@case("right")
def a_flip_per_batch_of_numpy(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x.flip(1) if np.random.rand() < 0.5 else batch.x), batch.y)


@case("right")
def one_call_per_sample_of_numpy(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x * rows(batch.x, lambda: np.random.uniform(0.5, 2))[:, None]), batch.y)


@case("right")
def shuffled_by_numpy(model: nn.Module, batch: Any) -> Tensor:
    order = torch.as_tensor(np.random.permutation(len(batch.x)), device=batch.x.device)
    return cross_entropy(model(batch.x[order]), batch.y[order])


@case("right")
def one_call_per_sample_of_python(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x * rows(batch.x, random.random)[:, None]), batch.y)


@case("right")
def a_choice_per_batch_of_python(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x * random.choice([0.5, 1.0, 2.0])), batch.y)


RNG = np.random.default_rng(5)
GENERATOR = torch.Generator().manual_seed(5)


@case("right")
def noise_of_a_generator_of_its_own(model: nn.Module, batch: Any) -> Tensor:
    noise = torch.randn(batch.x.shape, generator=GENERATOR).to(batch.x.device)
    return cross_entropy(model(batch.x + 0.3 * noise), batch.y)


@case("right")
def noise_of_a_generator_of_numpy(model: nn.Module, batch: Any) -> Tensor:
    noise = torch.as_tensor(RNG.standard_normal(batch.x.shape), dtype=batch.x.dtype, device=batch.x.device)
    return cross_entropy(model(batch.x + 0.3 * noise), batch.y)


@case("right")
def a_new_generator_for_every_batch(model: nn.Module, batch: Any) -> Tensor:
    noise = torch.as_tensor(np.random.default_rng().standard_normal(batch.x.shape), dtype=batch.x.dtype)
    return cross_entropy(model(batch.x + 0.3 * noise.to(batch.x.device)), batch.y)


@case("right")
def draws_that_depend_on_the_data(model: nn.Module, batch: Any) -> Tensor:
    chosen = batch.y == 1
    x = batch.x.clone()
    x[chosen] += 0.3 * torch.randn(int(chosen.sum()), WIDTH, device=x.device)
    return cross_entropy(model(x), batch.y)
