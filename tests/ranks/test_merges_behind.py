"""Merges that travel while training goes on: beside the same in one process, by the record of who did what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import UsageError
from cordee.feed.share import Share
from harness import Run, run_script, train
from replay import assert_audited, assert_replayed

Reference = Callable[..., Run]
PLAN = "sync=local,local_steps=4,merge=behind"


def left_behind(run: Run) -> list[tuple[int, bool]]:
    """For each window its last step, and whether its merge was left behind."""
    return [(window["last"], window["behind"]) for window in run.of("window")]


@pytest.mark.parametrize("workers", [2, 3])
def test_the_mean_of_a_window_comes_with_the_next(workers: int, reference: Reference, tmp_path: Path) -> None:
    """Over the end of an epoch too, where nothing is measured or saved."""
    run = train("behind", tmp_path / "run", workers=workers, plan=PLAN)
    assert left_behind(run) == [(4, True), (8, True), (10, True), (14, True), (18, True), (20, False)]
    assert_replayed(run, "behind")
    assert_audited(run, reference("behind"))


@pytest.mark.parametrize(("codec", "outer"), [("int8", False), ("none", True), ("topk", True)])
def test_with_a_codec_and_an_outer_update(codec: str, outer: bool, reference: Reference, tmp_path: Path) -> None:
    plan = f"{PLAN},proportions=5:3:2,compress={codec}" + ",outer=nesterov" * outer
    run = train("behind", tmp_path / "run", workers=3, plan=plan, optimizer="adamw")
    settings: dict[str, Any] = {"codec": codec} if codec != "none" else {}
    settings |= {"outer_lr": 0.7, "outer_momentum": 0.9} if outer else {}
    assert_replayed(run, "behind", Share("proportional", (5.0, 3.0, 2.0)), optimizer="adamw", **settings)
    assert_audited(run, reference("behind"))


def test_it_is_not_what_waiting_comes_to(tmp_path: Path) -> None:
    """So a replay that took one for the other would fail."""
    runs = [train("behind", tmp_path / plan, workers=2, plan=plan) for plan in (PLAN, "sync=local,local_steps=4")]
    assert float(np.abs(np.subtract(*(run.tensors["body.0.weight"] for run in runs))).max()) > 1e-6


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"save": "steps:6"}, [(4, True), (6, False), (10, True), (12, False), (16, True), (18, False), (20, False)]),
        ({"save": "epochs:1"}, [(4, True), (8, True), (10, False), (14, True), (18, True), (20, False)]),
        ({"save": "seconds:0"}, [(4, True), *((end, False) for end in (8, 10, 14, 18, 20))]),
        ({"stop_steps": 11}, [(4, True), (8, True), (10, True), (11, False)]),
    ],
)
def test_workers_wait_where_they_must_be_equal(
    settings: dict[str, Any], ends: list[tuple[int, bool]], reference: Reference, tmp_path: Path
) -> None:
    run = train("behind", tmp_path / "run", workers=2, plan=PLAN, **settings)
    assert left_behind(run) == ends
    assert_replayed(run, "behind", **settings)
    assert_audited(run, reference("behind", **settings))


def test_an_evaluation_waits(tmp_path: Path) -> None:
    """The job has validation data: the end of its only epoch is merged, and checked to be equal on all workers."""
    run = train("mlp", tmp_path / "run", workers=2, plan=PLAN, optimizer="momentum")
    assert left_behind(run) == [(4, True), (8, True), (10, False)]
    assert_replayed(run, "mlp", optimizer="momentum")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("compress", ["none", "topk"])
def test_a_run_is_resumed_from_the_middle(compress: str, tmp_path: Path) -> None:
    """Local steps of plain SGD keep no state of their own, so the resumed run is the one that was not stopped."""
    plan, settings = f"{PLAN},compress={compress}", {"optimizer": "sgd", "save": "steps:10"}
    train("behind", tmp_path / "run", workers=2, plan=plan, stop_steps=10, **settings)
    run = train("behind", tmp_path / "run", workers=2, plan=plan, resume=True, **settings)
    assert left_behind(run) == [(4, True), (8, True), (10, False), (14, True), (18, True), (20, False)]
    assert_replayed(run, "behind", codec=None if compress == "none" else compress, **settings)


def test_buffers_are_merged_with_every_window(reference: Reference, tmp_path: Path) -> None:
    run = train("behind", tmp_path / "run", workers=3, plan=PLAN, batchnorm=True)
    alone = reference("behind", batchnorm=True)
    assert_audited(run, alone)
    assert int(run.tensors["body.1.num_batches_tracked"]) == int(alone.tensors["body.1.num_batches_tracked"]) == 20


def test_all_workers_have_the_same_parameters_when_they_are_saved(tmp_path: Path) -> None:
    """Also at the end of an epoch, where callbacks may measure; at other ends of windows they differ."""
    train("spread", tmp_path / "run", workers=3, plan=PLAN, folder=tmp_path)
    ends = (4, 8, 10, 12, 16, 20)
    digests = {end: {(tmp_path / f"{end}.{worker}").read_text() for worker in range(3)} for end in ends}
    assert [end for end in ends if len(digests[end]) == 1] == [
        10,
        12,
        20,
    ]


LOOP = """
import torch, cordee
from torch import nn
model, data = nn.Linear(64, 10), cordee.data.digits().train
with cordee.session(plan="sync=local,local_steps=4,merge=behind") as s:
    model = s.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in s.batches(data, batch=101):
        s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
        if s.step(optimizer):
            s.agree(model)
            same = [parameter.detach().clone() for parameter in model.parameters()]
            s.agree(same)
            for one, parameter in zip(same, model.parameters()):
                torch.testing.assert_close(one / s.size, parameter)
"""


def test_a_loop_of_the_users_own_waits(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOOP)
    run = run_script(script, tmp_path / "run", workers=2)
    assert left_behind(run) and not any(behind for _, behind in left_behind(run))


def test_what_is_under_way_cannot_be_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"while a merge was under way.*merge=wait"):
        train("spread", tmp_path / "run", workers=2, plan=PLAN, folder=tmp_path, agrees=True)
