"""A few steps on digits, then 1,003 samples to be judged by metrics of every kind."""

from __future__ import annotations

import mlp
import numpy as np
import torchmetrics
from torch import Tensor

import cordee
from cordee.train.job import Stop


def pair(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
    return (output.argmax(1) == target).sum(), len(target)


def job(samples: int = 1003) -> cordee.Job:
    every = cordee.data.digits(validation=0, test=0).train
    parts = {"test": np.arange(samples), "validation": np.arange(1003, 1104), "train": np.arange(1104, 1797)}
    data = {}
    for name, ids in parts.items():
        fields = every.gather(ids)
        data[name] = (fields["x"].double(), fields["y"])
    return mlp.job().replace(
        data=data,
        stop=Stop(steps=7),
        eval_batch=97,
        metrics={
            "accuracy": cordee.metrics.accuracy,
            "top5": cordee.metrics.top5,
            "pair": pair,
            "torchmetrics": torchmetrics.classification.MulticlassAccuracy(10, average="micro"),
            "auroc": torchmetrics.classification.MulticlassAUROC(10),  # keeps all outputs: merged by gathering
        },
    )
