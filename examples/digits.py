"""The smallest job: a multilayer perceptron on handwritten digits, which come with the package."""

import torch
from torch import nn

import cordee

job = cordee.Job(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)),
    loss=nn.functional.cross_entropy,  # mean over the samples it is given
    optimizer=lambda params: torch.optim.AdamW(params, lr=2e-2),
    data=cordee.data.digits(),  # .train, .validation, .test
    batch=250,
    epochs=5,
    metrics={"accuracy": cordee.metrics.accuracy},
)
