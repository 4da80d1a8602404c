"""Models whose linear layers are cut over workers, with a knob for what a job can ask for."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Save, Stop


class Block(nn.Module):
    """A residual block with a norm that is not cut.

    `scaled`: with a weight that acts on slices and elsewhere; `shared`: with shares over what is cut.
    """

    def __init__(self, width: int, scaled: bool = False, shared: bool = False) -> None:
        super().__init__()
        self.shared = shared
        self.scale = nn.Parameter(torch.full((), 0.7)) if scaled else None
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        between = nn.functional.gelu(self.up(self.norm(x)))
        between = 4 * between.softmax(-1) if self.shared else between
        if self.scale is not None:
            between, x = between * self.scale, x * self.scale
        out: Tensor = x + self.down(between)
        return out


def model(kind: str) -> nn.Module:
    if kind == "mlp":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    if kind == "norm":  # no bias before BatchNorm: its true gradient is zero, and Adam would blow the rounding up
        normed = (nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU())
        return nn.Sequential(*normed, nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 10))
    drop = nn.Dropout(0.1 if kind == "drops" else 0.0)
    blocks = [Block(24, kind == "scaled", kind == "shared"), Block(24)]
    return nn.Sequential(nn.Linear(64, 24), *blocks, drop, nn.Linear(24, 10))


def marked_model(kind: str) -> nn.Module:
    """Its parameters have a mark, as `docs/how-to/jobs.md` shows it."""
    made = model(kind).double()
    for name, one in made.named_parameters():
        one.is_norm = ".norm." in name  # type: ignore[attr-defined]
    return made


def grouped(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Two groups, by the mark."""
    norms, rest = ([one for one in params if one.is_norm == wanted] for wanted in (True, False))  # type: ignore[attr-defined]
    return torch.optim.AdamW([{"params": rest, "weight_decay": 0.1}, {"params": norms, "lr": 1e-2}], lr=3e-3)


PLANS = {"mlp": {"0": "colwise", "2": "rowwise"}}
BLOCKS = {"*.up": "colwise", "*.down": "rowwise"}


def hooked(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer whose hooks see slices as they are, and that the user wants in one kernel."""
    made = torch.optim.AdamW(params, lr=3e-3, fused=True)
    made.register_step_pre_hook(lambda *_: None)
    return made


def job(
    kind: str = "mlp",
    optimizer: str = "adamw",
    clip: float | None = None,
    stop_steps: int | None = None,
    keep_best: bool = False,
    save_steps: int | None = None,
    epochs: int = 2,
    cut: str = "",
) -> cordee.Job:
    data = cordee.data.digits(validation=0.1, test=0.1)
    x, y = (data.train.gather(np.arange(407))[name] for name in ("x", "y"))
    optimizers = {
        "adamw": lambda params: torch.optim.AdamW(params, lr=3e-3),
        "hooked": hooked,
        "grouped": grouped,
        "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    }
    return cordee.Job(
        model=lambda: marked_model(kind),
        loss=nn.functional.cross_entropy,
        optimizer=optimizers[optimizer],
        data={"train": (x.double(), y), "validation": (x[:50].double(), y[:50])},
        batch=37,
        epochs=epochs,
        clip=clip,
        metrics={"accuracy": cordee.metrics.accuracy},
        schedule=lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 64),
        tensor_plan=None if cut == "found" else json.loads(cut) if cut else PLANS.get(kind, BLOCKS),
        stop=Stop(steps=stop_steps),
        save=Save(steps=save_steps, keep_best="accuracy" if keep_best else None),
    )
