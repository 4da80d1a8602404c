"""Early stopping as a value, and why a training ended, in words."""

from __future__ import annotations

import pytest

from cordee.train.job import Stop
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
