"""What a run says while it goes on."""

from __future__ import annotations

import io
from typing import Any

from cordee.core.plan import Plan
from cordee.watch.progress import Progress
from records import epoch, event, step, worker


def said(*events: dict[str, Any]) -> list[str]:
    stream = io.StringIO()
    show = Progress(stream)
    for one in events:
        show(one)
    show.close()
    return stream.getvalue().splitlines()


def test_a_script_names_its_processes_once() -> None:
    lines = said(worker(1.0, 1), worker(1.0, 0), step(2.0, 1), step(2.1, 2))
    assert lines[0] == "processes: worker 0 is 100, worker 1 is 101"
    assert sum("processes" in line for line in lines) == 1


def test_a_plan_of_the_scripts_own_says_what_becomes_of_the_result() -> None:
    for own, words in (("accumulate=2", "the same result as in"), ("batchnorm=replica", "another result than in")):
        plan = Plan.parse(own)
        lines = said(event("plan", 1.0, plan=plan.to_dict(), faithfulness=plan.faithfulness))
        assert lines == [f"the script's own plan: {own} ({words} one process)"]


def test_an_epoch_without_validation_tells_its_training_loss() -> None:
    assert said(epoch(1.0, 0, 5, {})) == ["epoch 1: loss 1.0000"]
    assert said(epoch(1.0, 0, 5, {"loss": 0.5})) == ["epoch 1: validation loss 0.5000"]
    assert said({**event("epoch", 1.0, epoch=1, step=9, loss=None, validation={}, ms=0.0)}) == [
        "epoch 2: loss not finite"
    ]
