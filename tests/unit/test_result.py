"""What `cordee.train` returns, as it is printed."""

from __future__ import annotations

from pathlib import Path

from cordee.runtime.result import Result

VALUES = {
    "steps": 1200,
    "epochs": 20,
    "loss": 0.25,
    "validation": {"loss": 0.5, "a <b>": 0.75},
    "test": {},
    "workers": 2,
    "throughput": 12345.6,
    "step_ms": {"p50": 2.345},
    "ended": "after step 1200: all 20 epochs are done",
}


def test_it_prints_as_a_small_table() -> None:
    assert repr(Result(Path("runs/one"), VALUES)).splitlines() == [
        "              loss   a <b>",
        "training    0.2500",
        "validation  0.5000  0.7500",
        "steps       1,200 in 20 epochs",
        "speed       12,346 samples/s, 2.35 ms per step, 2 workers",
        "ended       after step 1200: all 20 epochs are done",
        "folder      runs/one",
    ]
    assert str(Result(Path("runs/one"), VALUES)) == repr(Result(Path("runs/one"), VALUES))


def test_what_only_some_runs_have() -> None:
    best = {"step": 60, "epoch": 9, "metric": "accuracy", "value": 0.9}
    more = {"best": best, "model": "best", "failures": 1, "samples_lost": 0, "samples_repeated": 0, "loss": None}
    said = repr(Result(Path("one"), {**VALUES, **more}))
    assert "best        accuracy 0.9000 after step 60 (the model)" in said
    assert "lost        1 worker; every sample was used once" in said
    assert "training    not finite" in said
    last = repr(Result(Path("one"), {**VALUES, **more, "model": "last"}))
    assert "after step 60 (not the model)" in last


def test_a_process_that_only_took_part_has_no_values() -> None:
    assert repr(Result(Path("one"), {})) == "folder  one"
