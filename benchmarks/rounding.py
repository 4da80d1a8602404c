"""Why Qwen3 differs in the table of models and plans: `python benchmarks/rounding.py`, one process, no plan.

The job `qwen3` of `benchmarks/products.py` is trained by a loop by hand: each batch at once, in two parts, and sample
by sample, with the same samples in every step. Parts of another shape round differently in their last bits (1e-16 in
fp64). The norms of Qwen3 in `transformers` convert to float32, whatever the model's format: where a number lies between
two of float32, the last bit decides to which of them it goes, 6e-8 apart. The same is then trained with norms that
stay in fp64. Differences are the largest of a loss (relative) and of a parameter (absolute), from the batch at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers.machine import described
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from cordee.feed.batch import Batch
from cordee.train.jobfile import load_job
from harness import job_file
from splits import MODELS

RESULTS = Path(__file__).parent / "results" / "rounding.json"
STEPS = 20
PARTS = {"two parts": 2, "sample by sample": 1000}


def in_fp64(norm: Any, hidden: Tensor) -> Tensor:
    """What a norm of Qwen3 computes, without the conversion."""
    made: Tensor = norm.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    return made


def train(parts: int, *, wide: bool) -> tuple[np.ndarray, Tensor]:
    """Losses and parameters, where a step's batch is computed in so many parts."""
    known = MODELS["qwen3"]
    job = load_job(job_file(known.job), {name: str(value) for name, value in known.settings.items()})
    torch.manual_seed(job.seed)
    model = job.make_model()
    for module in model.modules():
        if wide and type(module).__name__ == "Qwen3RMSNorm":
            module.forward = in_fp64.__get__(module)
    optimizer, order, losses = job.make_optimizer(model), job.order(job.resolve(1)), []
    for step in range(STEPS):
        ids = order.ids(*divmod(step, order.steps))
        losses.append(0.0)
        optimizer.zero_grad()
        for part in np.array_split(ids, min(parts, len(ids))):
            loss = job.compute(model, Batch(part, job.data.train.gather(part)))[0] * len(part) / len(ids)
            loss.backward()
            losses[-1] += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), job.clip or torch.inf)
        optimizer.step()
    return np.asarray(losses), torch.cat([one.detach().flatten() for one in model.parameters()])


def main() -> None:
    """Train, print and record."""
    torch.set_num_threads(1)
    found: dict[str, Any] = described("transformers")
    for norms, wide in (("as they are", False), ("in fp64", True)):
        losses, model = train(1, wide=wide)
        for name, parts in PARTS.items():
            others, other = train(parts, wide=wide)
            loss, parameter = (np.abs(others - losses) / np.abs(losses)).max(), (other - model).abs().max()
            cell = {"loss": float(f"{loss:.1e}"), "parameter": float(f"{parameter:.1e}")}
            found.setdefault(f"norms {norms}", {})[name] = cell
            print(f"norms {norms}, {name}: {cell}")
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
