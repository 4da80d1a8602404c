"""A loop in the user's own hands: the same script alone, under `cordee run`, and with a worker that dies in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alone import python
from cordee.core.errors import PlanError, WorkersLost
from harness import JOBS, Run, command, run_script

Told = dict[str, Any]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Told]:
    """What a script tells when Python runs it without any launcher; each script runs once."""
    told: dict[str, Told] = {}

    def find(script: str) -> Told:
        if script not in told:
            folder = tmp_path_factory.mktemp(script)
            name, *more = script.split()
            python(JOBS / f"{name}.py", folder, *more)
            told[script] = json.loads((folder / "0.json").read_text())
        return told[script]

    return find


def assert_told_the_same(found: Told, wanted: Told) -> None:
    np.testing.assert_allclose(found["losses"], wanted["losses"], rtol=1e-12)
    assert found["ledger"] == wanted["ledger"]
    assert (found["ledger"]["lost"], found["ledger"]["repeated"]) == (0, 0)
    for name, value in wanted["state"].items():
        np.testing.assert_allclose(found["state"][name], value, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("script", "workers", "plan"),
    [
        ("own_loop", 3, "auto"),
        ("own_loop", 2, "share=sampled"),
        ("gan", 3, "auto"),
        ("gan", 2, "share=sampled"),
        ("gan", 3, "proportions=2:0:1"),
        ("own_loop", 2, "sync=server"),
        ("gan", 3, "sync=server,servers=2"),
    ],
)
def test_a_script_does_not_care_how_many_it_is(
    script: str, workers: int, plan: str, alone: Callable[[str], Told], warm: int, tmp_path: Path
) -> None:
    run = run_script(JOBS / f"{script}.py", tmp_path / "run", str(tmp_path), workers=workers, plan=plan)
    for rank in range(workers):
        assert_told_the_same(json.loads((tmp_path / f"{rank}.json").read_text()), alone(script))
    assert [event["step"] for event in run.of("step")] == list(range(1, 1 + len(alone(script)["losses"])))


@pytest.mark.parametrize(("worker", "step"), [(0, 4), (1, 0), (2, 13)])
def test_a_worker_dies_between_two_updates_of_one_step(
    worker: int, step: int, alone: Callable[[str], Told], warm: int, tmp_path: Path
) -> None:
    """The first update is committed and not done again, nor are the running statistics of BatchNorm."""
    run: Run = run_script(JOBS / "gan.py", tmp_path / "run", str(tmp_path), str(worker), str(step), workers=3)
    assert [event["worker"] for event in run.of("failure")] == [worker]
    for rank in range(2):
        assert_told_the_same(json.loads((tmp_path / f"{rank}.json").read_text()), alone("gan"))


@pytest.mark.parametrize("fate", ["two 0 4 1", "two 1 0 1", "two 2 13 1", "thrice 1 0 2", "thrice 0 5 1"])
def test_a_step_of_several_updates_is_computed_again_from_its_beginning(
    fate: str, alone: Callable[[str], Told], warm: int, tmp_path: Path
) -> None:
    """What is used after an update was computed before it, also when the step is done again; buffers too."""
    how, worker, *_ = fate.split()
    run: Run = run_script(JOBS / "carried.py", tmp_path / "run", str(tmp_path), *fate.split(), workers=3)
    assert [event["worker"] for event in run.of("failure")] == [int(worker)]
    for rank in range(2):
        assert_told_the_same(json.loads((tmp_path / f"{rank}.json").read_text()), alone(f"carried {how}"))


@pytest.mark.parametrize("at", [6, 13, 14])  # the first update of step 0 and of step 3, the second of step 3
def test_an_update_of_several_is_handed_over(at: int, alone: Callable[[str], Told], warm: int, tmp_path: Path) -> None:
    """Worker 0 has what was agreed on, 1 has not, 2 is dead: both make the same update, and go on with the step."""
    words = [f"agreed-{at}.0", f"lost-{at}.1"]
    acts = {"1": {f"agree-{at}": ["lose"]}, "2": {f"agreed-{at}": ["die", *words]}}
    run = run_script(JOBS / "carried.py", tmp_path / "run", str(tmp_path), "two", json.dumps(acts), workers=3)
    assert [event["worker"] for event in run.of("failure")] == [2]
    assert json.loads((tmp_path / "go-2.0").read_text())["giver"] == 0
    for rank in range(2):
        assert_told_the_same(json.loads((tmp_path / f"{rank}.json").read_text()), alone("carried two"))


@pytest.mark.parametrize("fate", [[], ["1", "0"], ["0", "6"]])
def test_two_passes_as_two_updates(fate: list[str], alone: Callable[[str], Told], warm: int, tmp_path: Path) -> None:
    """SAM, with the gradient of the global batch in both passes."""
    run = run_script(JOBS / "sam.py", tmp_path / "run", str(tmp_path), *fate, workers=3)
    assert [event["worker"] for event in run.of("failure")] == [int(one) for one in fate[:1]]
    for rank in range(2 if fate else 3):
        assert_told_the_same(json.loads((tmp_path / f"{rank}.json").read_text()), alone("sam"))


def test_a_loss_at_the_first_second_update_is_said_not_hidden(warm: int, tmp_path: Path) -> None:
    with pytest.raises(WorkersLost, match="lost after 1 of the updates of one step"):
        run_script(JOBS / "carried.py", tmp_path / "run", str(tmp_path), "late", "1", "3", "1", workers=3)


TWICE = """
import sys, time
from pathlib import Path
import torch
import cordee
from cordee.train.session import stepper_of

for turn in range(2):
    with cordee.session() as s:
        model = s.prepare(torch.nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in s.batches(cordee.data.digits().train, batch=101, epochs=1):
            s.backward(torch.nn.functional.cross_entropy(model(batch.x), batch.y))
            s.step(optimizer)
if s.rank == 0:
    time.sleep(1.0)  # what one worker does behind the block is waited for
    Path(sys.argv[1]).write_text(f"{s.size} {stepper_of(s).ledger.samples}")
"""


def test_a_script_may_do_more_behind_the_block(warm: int, tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TWICE)
    run_script(tmp_path / "twice.py", tmp_path / "run", str(tmp_path / "told"), workers=3)
    assert (tmp_path / "told").read_text() == "3 1437"


def test_the_command_passes_arguments_on(warm: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, cordee\nwith cordee.session() as s: sys.stdout.write(f'{s.rank} {s.size} {sys.argv[1:]}\\n')\n"
    )
    ended = command("run", "--workers", "2", "--out", tmp_path / "run", script, "--lr", "3", "x")
    assert (ended.returncode, sorted(ended.stdout.splitlines())[:2]) == (
        0,
        ["0 2 ['--lr', '3', 'x']", "1 2 ['--lr', '3', 'x']"],
    )


LOOPS = """
import sys, time
import torch
from torch import nn
import cordee

data = cordee.data.digits()
torch.manual_seed(0)
with cordee.session() as s:
    model = s.prepare(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for batch in s.batches(data.train, batch=400, epochs=None if "endless" in sys.argv else 1):
            s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
            if s.step(optimizer) and "wish" in sys.argv and s.rank == s.size - 1 and s.last.steps == 3:
                s.wish.stop = True
        if "wish" in sys.argv:
            break
    print("after", s.last.steps, flush=True)
"""


def test_steps_of_a_second_loop_are_on_record_too(tmp_path: Path) -> None:
    script = tmp_path / "loops.py"
    script.write_text(LOOPS)
    run = run_script(script, tmp_path / "run", workers=2)
    assert [event["step"] for event in run.of("step")] == list(range(1, 9))


def test_a_wish_to_stop_ends_the_loop_of_all(tmp_path: Path) -> None:
    script = tmp_path / "loops.py"
    script.write_text(LOOPS)
    run = run_script(script, tmp_path / "run", "endless", "wish", workers=3)
    assert [event["step"] for event in run.of("step")] == [1, 2, 3, 4]  # the wish travels with the next step


PLANNED = """
import sys
import torch
import cordee

for plan in sys.argv[1:]:
    with cordee.session(plan=None if plan == "none" else plan) as s:
        model = s.prepare(torch.nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in s.batches(cordee.data.digits().train, batch=400):
            s.backward(torch.nn.functional.cross_entropy(model(batch.x), batch.y))
            s.step(optimizer)
"""


def test_a_plan_of_the_scripts_own_is_on_record(warm: int, tmp_path: Path) -> None:
    """Each time that it changes; a session without one has the launcher's."""
    script = tmp_path / "planned.py"
    script.write_text(PLANNED)
    own = "batchnorm=replica"
    run = run_script(script, tmp_path / "run", "none", own, own, workers=2, plan="bucket_mb=7")
    told = [(event["plan"]["batchnorm"], event["faithfulness"]) for event in run.of("plan")]
    assert told == [("replica", "statistical")]
    found = json.loads((run.out / "run.json").read_text())
    assert (found["plan"], found["faithfulness"]) == (own, "statistical")
    back = run_script(script, tmp_path / "back", own, "none", workers=2, plan="bucket_mb=7")
    assert [event["plan"]["bucket_mb"] for event in back.of("plan")] == [0.0, 7.0]
    found = json.loads((back.out / "run.json").read_text())
    assert (found["plan"], found["faithfulness"]) == ("bucket_mb=7", "same")


def test_a_plan_of_the_scripts_own_is_checked(warm: int, tmp_path: Path) -> None:
    script = tmp_path / "planned.py"
    script.write_text(PLANNED)
    with pytest.raises(PlanError, match=r"3 worker.*but 2 start"):
        run_script(script, tmp_path / "run", "proportions=1:2:3", workers=2)
