"""Early stopping as a value, and why a training ended, in words."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cordee.train.job import Job, Stop
from cordee.train.stopping import Evaluations, tell_cause


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
    evaluations = Evaluations(Stop(metric=metric, patience=2, least_gain=least_gain), None)
    seen = None
    for count, value in enumerate(values, start=1):
        evaluations.see(count, count, {metric.lstrip("-"): value})
        if evaluations.exhausted:
            seen = count
            break
    assert seen == stops_after


def test_without_a_metric_it_never_stops() -> None:
    evaluations = Evaluations(Stop(patience=1), None)
    for count in range(5):
        evaluations.see(count, count, {})
    assert not evaluations.exhausted


def test_it_goes_on_from_a_checkpoint() -> None:
    first = Evaluations(Stop(metric="loss", patience=2), None)
    first.see(1, 1, {"loss": 1.0})
    first.see(2, 2, {"loss": 2.0})
    second = Evaluations(Stop(metric="loss", patience=2), None)
    second.take_up(first.to_dict())
    assert not second.exhausted
    second.see(3, 3, {"loss": 1.5})
    assert second.exhausted


def test_a_passing_evaluation_is_not_kept() -> None:
    evaluations = Evaluations(Stop(metric="loss", patience=1), None)
    evaluations.see(1, 1, {"loss": 2.0})
    kept = evaluations.to_dict()
    evaluations.see(2, 1, {"loss": 1.0}, passing=True)
    assert (evaluations.step, evaluations.exhausted, evaluations.to_dict()) == (2, False, kept)


def best_of(values: list[float], *, keep_best: str | None, metric: str | None = None) -> Evaluations:
    evaluations = Evaluations(Stop(metric=metric), keep_best)
    for epoch, value in enumerate(values):
        evaluations.see(10 * (epoch + 1), epoch, {"loss": -value, "score": value})
    return evaluations


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
    assert (best.best() is None) == (step < 0)
    other = best_of([], **asked)  # type: ignore[arg-type]
    other.take_up(best.to_dict())
    assert other.best() == best.best()


def test_the_best_by_another_metric_is_not_taken_up() -> None:
    best = best_of([], keep_best="-loss")
    best.take_up(best_of([1, 2], keep_best="score").to_dict())
    assert best.step == -1


EVERYTHING = Stop(steps=90, minutes=2.5, metric="loss", patience=2, when=lambda step: True)


@pytest.mark.parametrize(
    ("steps", "epochs", "stop", "last_epoch", "cause"),
    [
        (60, 5, EVERYTHING, 5, "all 5 epochs are done"),
        (60, 1, Stop(), 1, "its epoch is done"),
        (90, 4, EVERYTHING, 5, "Stop(steps=90)"),
        (60, 4, Stop(when=lambda step: True), None, "Stop(when=...)"),
        (60, 4, EVERYTHING, None, "Stop(minutes=2.5) or Stop(when=...)"),
        (60, 4, Stop(), 5, "a callback wished to stop"),
    ],
)
def test_why_it_ended_is_told_in_words(steps: int, epochs: int, stop: Stop, last_epoch: int | None, cause: str) -> None:
    assert tell_cause(job(stop, last_epoch), steps, epochs, exhausted=False) == cause


def test_patience_that_ran_out_is_told_in_words() -> None:
    cause = "Stop(metric='loss', patience=2), after 2 evaluations without progress"
    assert tell_cause(job(EVERYTHING, 5), 60, 4, exhausted=True) == cause


def job(stop: Stop, epochs: int | None) -> Job:
    data = {"train": torch.zeros(3, 1), "validation": torch.zeros(3, 1)}
    return Job(nn.Identity, data, torch.optim.SGD, loss=nn.functional.mse_loss, stop=stop, epochs=epochs)
