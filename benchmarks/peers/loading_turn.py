"""One turn of one loader in a process of its own; prints what it measured as JSON on the last line.

python loading_turn.py '{"script": ..., "loading": ..., "setting": {...}, "folder": ..., "task": "speed", ...}'
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import sys
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loading_data import BATCH, SHAPE, Reading, made

LEAST_S = 1.0
"""A fast loader reads epochs until so much time has passed."""


def checked(batch: Any) -> Any:
    """A batch as all loaders have to give it."""
    x, y = batch
    assert isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor), (type(x), type(y))
    assert x.dtype == torch.uint8 and y.dtype == torch.int64, (x.dtype, y.dtype)
    assert tuple(x.shape[1:]) == SHAPE and y.shape == (len(x),) and 0 < len(x) <= BATCH, (x.shape, y.shape)
    return batch


def drained(batches: Iterator[Any], limit_s: float) -> tuple[int, float]:
    """Samples and seconds of what is left of an epoch, or of as much of it as comes within the limit."""
    began, samples = time.perf_counter(), 0
    for _, y in batches:
        samples += len(y)
        if time.perf_counter() - began > limit_s:
            break
    return samples, time.perf_counter() - began


def speed(open_it: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """From nothing to the first batch, the rest of this epoch, and whole epochs after that."""
    began = time.perf_counter()
    reading: Reading = open_it()
    batches = reading.epoch(0)
    _, y = checked(next(batches))
    first_s = time.perf_counter() - began
    if asked["task"] == "first":
        return {"first_s": first_s}
    limit_s = asked["limit_s"]
    samples, seconds = drained(batches, limit_s)
    found = {"first_s": first_s, "first_epoch": (samples + len(y)) / (first_s + seconds)}
    if asked["task"] == "trial" and first_s + seconds > asked["enough_s"]:
        return {**found, "rate": found["first_epoch"]}
    total, took, epoch = 0, 0.0, 0
    del batches
    while took < LEAST_S:
        epoch += 1
        samples, seconds = drained(reading.epoch(epoch), limit_s)
        total, took = total + samples, took + seconds
    return {**found, "rate": total / took}


def stop(open_it: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Half of an epoch, whose samples are looked at, and the state that is saved there."""
    reading: Reading = open_it()
    ids, truth = [], made()[0]
    for x, y in reading.epoch(0):
        checked((x, y))
        assert np.array_equal(x.numpy(), truth[y.numpy()]), "these are not the samples"
        ids.append(y.numpy().copy())
        if len(ids) == asked["batches"]:
            break
    state = reading.state()
    Path(asked["state"]).write_bytes(pickle.dumps(state))
    np.save(asked["ids"], np.concatenate(ids))
    return {"state_bytes": size_of(state)}


def size_of(state: Any) -> int:
    """Bytes of a state as JSON, or pickled where that is smaller or JSON does not know it."""
    sizes = [len(state) if isinstance(state, bytes) else len(pickle.dumps(state))]
    with contextlib.suppress(TypeError):
        sizes.append(len(json.dumps(state, separators=(",", ":"))))
    return min(sizes)


def resume(open_it: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The same place in a new process: time to the next batch, then the rest of the epoch."""
    raw = Path(asked["state"]).read_bytes()
    began = time.perf_counter()
    state = pickle.loads(raw)
    reading: Reading = open_it()
    batches = reading.resume(state)
    first = checked(next(batches))
    resume_s = time.perf_counter() - began
    if "ids" in asked:
        np.save(asked["ids"], np.concatenate([first[1].numpy().copy(), *(y.numpy().copy() for _, y in batches)]))
    return {"resume_s": resume_s}


def versions(packages: list[str]) -> dict[str, str]:
    """Those of packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError as error:
            raise SystemExit(f"{name} is not installed") from error
    return found


def main() -> None:
    """Do what was asked for."""
    warnings.simplefilter("ignore")  # of the peers: they would hide the last line
    asked = json.loads(sys.argv[1])
    found: dict[str, Any] = {"versions": versions(asked["packages"])}
    for name in asked["modules"]:
        importlib.import_module(name)
    loading = getattr(importlib.import_module(asked["script"]), asked["loading"])
    folder = Path(asked["folder"])
    if asked["task"] == "write":
        loading.write(folder, *made())
    else:
        tasks = {"trial": speed, "speed": speed, "first": speed, "stop": stop, "resume": resume}
        task = tasks.get(asked["task"]) or getattr(loading, asked["task"])
        open_it = lambda: loading.open(folder, **asked["setting"])  # noqa: E731
        found |= task(open_it, asked)
    print("\n" + json.dumps(found), flush=True)
    os._exit(0)  # workers of some peers hang at the end


if __name__ == "__main__":
    main()
