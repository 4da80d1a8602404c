"""A convolutional network on MNIST: data from files, and what to do when they are not there.

cordee train examples/mnist.py                              (fetches the files, once, into a cache folder)
cordee train examples/mnist.py --set data=path/to/mnist     (has them already: four IDX files, gzipped or not)
"""

import fcntl
import http.client
import os
import urllib.request
from pathlib import Path

import torch
from torch import nn

import cordee

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"  # the one that torchvision uses
FILES = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),  # images come as (samples, 28, 28), convolutions want a channel
        nn.Conv2d(1, 16, 5, bias=False),
        nn.BatchNorm2d(16),  # over the whole batch of a step, however many workers share it
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def fetch(folder: Path, mirror: str) -> Path:
    """Download what is missing. Every worker comes here: the first of a host fetches, the others wait for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for name in FILES:
                if not (folder / name).exists():
                    with urllib.request.urlopen(f"{mirror}/{name}", timeout=30) as answer:
                        (folder / "part").write_bytes(answer.read())
                    os.replace(folder / "part", folder / name)  # never half a file under its own name
    except (OSError, http.client.HTTPException) as error:
        raise cordee.errors.DataError(
            f"MNIST is not in {folder.absolute()} and could not be fetched from {mirror} ({error}). "
            f"Put {', '.join(FILES)} into a folder and name it: --set data=FOLDER"
        ) from error
    return folder


def job(data: str = "", mirror: str = MIRROR, lr: float = 3e-3) -> cordee.Job:
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "cordee" / "mnist"
    return cordee.Job(
        model=cnn,
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.AdamW(params, lr=lr),
        # Pixels are kept as bytes and become numbers from 0 to 1 when a batch is made.
        data=cordee.data.idx(data or fetch(cache, mirror), validation=0.1, scale=True),
        batch=128,
        epochs=2,
        metrics={"accuracy": cordee.metrics.accuracy},
    )
