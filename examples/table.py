"""A CSV with numbers, categories and missing values becomes a classifier, which is then given new rows.

cordee train examples/table.py --workers 2 --out runs/table
python examples/table.py runs/table
"""

import sys
from pathlib import Path

import torch
from torch import nn

import cordee


def job(lr: float = 1e-2) -> cordee.Job:
    fruit = cordee.data.csv(Path(__file__).with_name("fruit.csv"), label="fruit")
    return cordee.Job(
        model=lambda: nn.Sequential(nn.LazyLinear(32), nn.Tanh(), nn.Linear(32, 4)),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.AdamW(params, lr=lr),
        data=fruit.fill("median").standardize().one_hot().split(0.7, 0.15, 0.15),
        batch=32,
        epochs=15,
        metrics={"accuracy": cordee.metrics.accuracy},
    )


if __name__ == "__main__":
    run = sys.argv[1]
    rows = [
        {"weight": 172, "width": 61.5, "colour": "green", "market": "Bern"},
        {"weight": None, "width": 38.0, "colour": "blue", "market": "Lugano"},  # which training never saw
    ]
    chances = cordee.predict(cordee.load(run), cordee.data.prepared(run, rows)).softmax(1)
    names = cordee.data.class_names(run)
    for row, chance in zip(rows, chances, strict=True):
        print(f"{row}: {names[int(chance.argmax())]} ({chance.max():.0%})")
