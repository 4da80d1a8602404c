"""Whether late transforms keep the law: what becomes of a sample depends on seed, epoch and sample alone."""

from __future__ import annotations

import random

import numpy as np
import torch

from cordee.core.errors import DataError, MixingError
from cordee.feed.batch import Batch, named_tensors
from cordee.feed.late import Late, change, late_of
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Source, map_tensors

TOLERANCE = 1e-3
"""Rows computed beside others may differ by rounding."""


def check_late(source: Source, ids: Ids, device: str) -> None:
    """Try the transforms of a source on some samples, whole and in parts; nothing is done where there are none."""
    late = late_of(source, training=True)
    if not late or len(ids) < 2:
        return
    raw = map_tensors(lambda tensor: tensor.to(device), source.gather(ids))
    if {len(one) if one.dim() else -1 for _, one in named_tensors(raw)} != {len(ids)}:
        return  # a collate function made something else than rows of it
    for place, one in enumerate(late):
        before = late[:place]
        whole, again = (_run(raw, ids, slice(None), before, one, seed) for seed in (1, 2))
        _check_rows(one, whole, len(ids))
        cut = max(1, len(ids) // 3)
        parts = [_run(raw, ids, part, before, one, 1) for part in (slice(0, cut), slice(cut, None))]
        if _differ(whole, [again]):
            raise DataError(
                f"{_called(one)} gives the same batch other values each time, so training would depend on the worker "
                "that computes it. Make what is random of cordee.data.draws(batch, count): it draws count numbers "
                "from 0 to 1 for each sample, by epoch and sample alone"
            )
        if _differ(whole, parts):
            raise MixingError(
                f"{_called(one)} makes of a sample what depends on the samples beside it in the batch, which differ "
                "with the number of workers. Let it change each row by itself; what needs the whole batch belongs "
                "into objective=, with cordee.gather(tensor)"
            )


def _called(late: Late) -> str:
    return f"{'augment' if late.augments else 'transform'}({late.name})"


def _run(raw: Fields, ids: Ids, part: slice, before: tuple[Late, ...], late: Late, seed: int) -> Fields:
    """On copies, as the function may write into what it is given; with generators that begin at `seed`."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            batch = Batch(ids[part].copy(), map_tensors(lambda tensor: tensor[part].clone(), raw))
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            return change(batch, (*before, late)).fields
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _check_rows(late: Late, fields: Fields, count: int) -> None:
    odd = [(name, one) for name, one in named_tensors(fields) if not one.dim() or len(one) != count]
    if odd:
        name, one = odd[0]
        raise DataError(
            f"{_called(late)} gave {name} of shape {tuple(one.shape)} for a batch of {count} samples: its first "
            "dimension must count them"
        )


def _differ(whole: Fields, parts: list[Fields]) -> bool:
    one = dict(named_tensors(whole))
    others = [dict(named_tensors(part)) for part in parts]
    if any(other.keys() != one.keys() for other in others):
        return True
    return any(
        not torch.allclose(
            tensor.double(), torch.cat([other[name] for other in others]).double(), TOLERANCE, TOLERANCE, equal_nan=True
        )
        for name, tensor in one.items()
    )
