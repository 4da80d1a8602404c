"""What sync=auto decides, as a value."""

from __future__ import annotations

import pytest

from cordee.sync.adaptive import OPTIONS, Measured, bytes_sent, decide

SHAPES = [(1000, 1000), (1000,), (4000, 250)]
MBIT = 1e6 / 8


def choice(
    compute_s: float, mbit: float, now: str = "none", replicas: int = 2, options: tuple[str, ...] = OPTIONS
) -> str:
    return decide(Measured(compute_s, mbit * MBIT), SHAPES, replicas, options, now).choice


def test_the_gentlest_way_that_hides_is_taken() -> None:
    """8 MB of gradients, 0.5 s of computing: half of it hides what is sent."""
    assert choice(0.5, 1000) == "none"  # 0.064 s
    assert choice(0.5, 200) == "bf16"  # 0.32, 0.16 s
    assert choice(0.5, 100) == "int8"  # 0.32, 0.16 s
    assert choice(0.5, 10) == "powersgd"  # 1.6, 0.04 s
    assert choice(0.005, 1) == "powersgd"  # nothing hides: the shortest step
    assert decide(Measured(0.5, MBIT), [(10**6,)], 2, OPTIONS, "none").choice == "topk", "no matrix to make thin"


def test_exact_sums_alone_may_be_asked_for() -> None:
    assert choice(0.5, 0.1, options=("none",)) == "none"


def test_it_goes_back_only_with_room_to_spare() -> None:
    """0.2 s of 0.25 s would be sent: not enough room to go back, enough to stay."""
    assert choice(0.5, 300, now="none") == "none"
    assert choice(0.5, 300, now="bf16") == "bf16"
    assert choice(0.5, 400, now="bf16") == "none"


def test_more_replicas_show_more() -> None:
    assert bytes_sent("none", SHAPES, 2) == 4 * 2_001_000
    assert bytes_sent("none", SHAPES, 8) == pytest.approx(7 * 2_001_000)
    assert bytes_sent("bf16", SHAPES, 8) > bytes_sent("none", SHAPES, 8), "gathered, not summed"
    assert bytes_sent("powersgd", SHAPES, 2) == 4 * (4 * 2000 + 1000 + 4 * 4250)


def test_a_forecast_stands_for_each_way() -> None:
    found = decide(Measured(0.5, 10 * MBIT), SHAPES, 2, OPTIONS, "none")
    assert list(found.forecast_s) == list(OPTIONS)
    assert found.forecast_s["none"] == pytest.approx(0.5 + 8 * 8.004 / 10 - 0.25)
