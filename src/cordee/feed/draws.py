"""Random numbers that belong to samples: every worker draws the same ones for a sample."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cordee.feed.batch import Batch, named_tensors
from cordee.feed.permute import mix, random_bits

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # odd, from the golden ratio: neighbouring ids begin far from each other
_DROPPED_BITS = np.uint64(64 - 24)  # a float32 below 1 holds 24 bits evenly


def draws(batch: Batch, count: int, *, seed: int = 0) -> Tensor:
    """Draw `count` numbers evenly from [0, 1) for every sample of the batch: float32 of shape (samples, count).

    They depend on the seed, the epoch and the sample alone, not on the worker, the share or what was drawn before, and
    lie on the device of the batch: augmentation made of them is the same on any number of workers, and after a resume.
    A seed of its own makes other numbers of the same samples. Where `steps_per_epoch` lets a sample come twice in an
    epoch, it draws the same both times.
    """
    if count < 1:
        raise ValueError(f"count={count}: at least 1 number for every sample can be drawn")
    keys = np.array(random_bits(count, "sample", seed, batch.epoch), dtype=np.uint64)
    places = (np.asarray(batch.ids).astype(np.uint64) + np.uint64(1)) * _SPREAD
    bits = mix(places[:, None] + keys) >> _DROPPED_BITS
    numbers = torch.from_numpy(bits.astype(np.float32) * np.float32(2**-24))
    device = next((tensor.device for _, tensor in named_tensors(batch.fields)), "cpu")
    return numbers.to(device)
