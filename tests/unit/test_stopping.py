"""Early stopping as a value, and why a training ended, in words."""

from __future__ import annotations

import pytest
import torch

import cordee
from cordee.train.best import Best
from cordee.train.job import Save, Stop
from cordee.train.stopping import Ending, Patience


@pytest.mark.parametrize(
    ("metric", "least_gain", "values", "stops_after"),
    [
        ("loss", 0.0, [3, 2, 1, 1, 1], 5),
        ("loss", 0.0, [3, 4, 2, 3, 3], 5),
        ("loss", 0.5, [3.0, 2.8, 2.6, 2.4], 3),
        ("accuracy", 0.0, [0.1, 0.2, 0.2, 0.1], 4),
        ("-error", 0.0, [3, 4, 5], 3),
        ("loss", 0.0, [5, 4, 3, 2, 1], None),
        ("loss", 0.0, [float("nan"), 4, 3, 2, 1], None),
        ("accuracy", 0.0, [0.5, float("inf"), 0.6, float("nan"), 0.7], None),
    ],
)
def test_it_stops_after_two_evaluations_without_progress(
    metric: str, least_gain: float, values: list[float], stops_after: int | None
) -> None:
    patience = Patience(metric, 2, least_gain)
    seen = None
    for count, value in enumerate(values, start=1):
        patience.see({metric.lstrip("-"): value})
        if patience.exhausted:
            seen = count
            break
    assert seen == stops_after


def test_without_a_metric_it_never_stops() -> None:
    patience = Patience(None, 1, 0.0)
    for _ in range(5):
        patience.see({})
    assert not patience.exhausted


def test_it_goes_on_from_a_checkpoint() -> None:
    first = Patience("loss", 2, 0.0)
    first.see({"loss": 1.0})
    first.see({"loss": 2.0})
    second = Patience("loss", 2, 0.0)
    second.take_up(first.to_dict())
    assert not second.exhausted
    second.see({"loss": 1.5})
    assert second.exhausted


def best_of(values: list[float], *, keep_best: str | None, metric: str | None = None) -> Best:
    def measured(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output

    job = cordee.Job(
        model=lambda: torch.nn.Linear(1, 1),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        data={"train": torch.zeros(3, 1), "validation": torch.zeros(3, 1)},
        metrics={"score": measured},
        stop=Stop(metric=metric),
        save=Save(keep_best=keep_best),
    )
    best = Best(job)
    for epoch, value in enumerate(values):
        best.see(10 * (epoch + 1), epoch, {"loss": -value, "score": value})
    return best


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("asked", "values", "step"),
    [
        ({"keep_best": "score"}, [1, 3, 3, 2], 20),
        ({"keep_best": "-score"}, [1, 3, 1, 2], 10),
        ({"keep_best": "loss"}, [1, 3, 2], 20),
        ({"keep_best": "-loss"}, [1, 3, 2], 20),
        ({"keep_best": None, "metric": "score"}, [0, 0, 1], 30),
        ({"keep_best": "-score", "metric": "score"}, [2, 1, 3], 20),
        ({"keep_best": "score"}, [NAN, -2, INF, -1, NAN], 40),
        ({"keep_best": "score"}, [NAN, INF], -1),
        ({"keep_best": None}, [1, 2], -1),
    ],
)
def test_the_best_is_the_first_of_the_highest_finite_values(
    asked: dict[str, str | None], values: list[float], step: int
) -> None:
    best = best_of(values, **asked)  # type: ignore[arg-type]
    assert best.step == step
    assert (best.told() is None) == (step < 0)
    other = best_of([], **asked)  # type: ignore[arg-type]
    other.take_up(best.to_dict())
    assert other.told() == best.told()


def test_the_best_by_another_metric_is_not_taken_up() -> None:
    best = best_of([], keep_best="-loss")
    best.take_up(best_of([1, 2], keep_best="score").to_dict())
    assert best.step == -1
    best.take_up(None)  # of a checkpoint that does not know it
    assert best.step == -1


EVERYTHING = Stop(steps=90, minutes=2.5, metric="loss", patience=2, when=lambda step: True)


@pytest.mark.parametrize(
    ("ending", "stop", "epochs", "cause"),
    [
        (Ending(60, 5), EVERYTHING, 5, "all 5 epochs are done"),
        (Ending(60, 1), Stop(), 1, "its epoch is done"),
        (Ending(90, 4), EVERYTHING, 5, "Stop(steps=90)"),
        (Ending(60, 4), Stop(when=lambda step: True), None, "Stop(when=...)"),
        (Ending(60, 4, wish="Stop(when=...)"), EVERYTHING, None, "Stop(when=...)"),
        (Ending(60, 4), EVERYTHING, None, "Stop(minutes=2.5) or Stop(when=...)"),
        (Ending(60, 4), Stop(), 5, "a callback wished to stop"),
        (
            Ending(60, 4, exhausted=True),
            EVERYTHING,
            5,
            "Stop(metric='loss', patience=2), after 2 evaluations without progress",
        ),
        (Ending(60, 5, "interrupted", exhausted=True, wish="Stop(when=...)"), EVERYTHING, 5, "interrupted"),
    ],
)
def test_why_it_ended_is_told_in_words(ending: Ending, stop: Stop, epochs: int | None, cause: str) -> None:
    assert ending.told(stop, epochs) == f"after step {ending.steps}: {cause}"
