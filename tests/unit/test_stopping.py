"""Early stopping as a value."""

from __future__ import annotations

import pytest

from cordee.train.stopping import Patience


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
