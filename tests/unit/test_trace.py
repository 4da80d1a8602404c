from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import StorageError, UsageError
from cordee.watch.tensorboard import write_tensorboard
from cordee.watch.trace import parse_steps, write_trace
from records import T0, epoch, event, long_run, start, step, times, write

Event = dict[str, Any]


def read(path: Path) -> list[Event]:
    found: list[Event] = json.loads(path.read_text())["traceEvents"]
    return found


def traced(folder: Path, *options: Any) -> list[Event]:
    write_trace(folder, folder / "trace.json", *options)
    return read(folder / "trace.json")


def assert_sound(events: list[Event]) -> None:
    """On every track slices lie within each other or beside each other."""
    tracks: dict[Any, list[Event]] = defaultdict(list)
    for one in events:
        assert one["ph"] in "XiCM", one
        if one["ph"] != "M":
            assert one["ts"] >= 0
            tracks[one["pid"], one["tid"], one["ph"] == "C"].append(one)
    for track in tracks.values():
        open_until: list[float] = []
        for one in sorted(track, key=lambda one: (one["ts"], -one.get("dur", 0.0))):
            if one["ph"] != "X":
                continue
            while open_until and open_until[-1] <= one["ts"] + 0.01:
                open_until.pop()
            end = one["ts"] + one["dur"]
            assert not open_until or end <= open_until[-1] + 0.01, "two slices overlap"
            open_until.append(end)


def slices(events: list[Event], worker: int) -> list[Event]:
    return [one for one in events if one["ph"] == "X" and one["pid"] == worker + 1]


def a_run(folder: Path) -> Path:
    """Two workers, three steps; worker 1 comes 30 ms later and is then lost; an epoch ends."""
    made = start(0.0, 2)
    made += [step(2.1, 1, loss=3.0), step(2.2, 2, loss=2.0)]
    made += [times(2.2, 0, 0, [2.06, 2.16], (10.0, 40.0, 40.0, 0.0), 6)]
    made += [times(2.2, 1, 0, [2.09, 2.19], (10.0, 70.0, 10.0, 0.0), 6)]
    made += [event("failure", 2.3, worker=1, host="here", reason="killed", left=1, at=T0 + 2.25)]
    made += [event("regroup", 2.26, generation=2, workers=[0], ms=10.0), step(2.4, 3, samples=12, ms=200.0)]
    made += [times(2.4, 0, 2, [2.36], (10.0, 40.0, 0.0, 0.0), 12)]
    made += [epoch(2.5, 0, 3, {"accuracy": 0.25}, ms=30.0), event("checkpoint", 2.65, step=3, ms=5.0, at=T0 + 2.45)]
    return write(
        folder,
        [
            *made,
            event("warning", 2.6, message="odd </script> \u2028"),
            event("end", 2.7, reason="completed", code=0, message=""),
        ],
    )


def test_every_part_of_every_step_is_a_slice(tmp_path: Path) -> None:
    events = traced(a_run(tmp_path))
    assert_sound(events)
    assert [one["name"] for one in slices(events, 0)] == [
        *("step 1", "data", "compute", "waiting", "communication"),
        *("step 2", "data", "compute", "waiting", "communication"),
        *("step 3", "data", "compute"),
    ]
    parts = ("data", "compute", "communication")
    assert [one["name"] for one in slices(events, 1)] == ["step 1", *parts, "step 2", *parts]
    by_name = {one["name"]: one for one in slices(events, 0)[:5]}
    assert by_name["data"]["ts"] == pytest.approx(2.01e6, abs=1)
    assert by_name["waiting"]["ts"] == pytest.approx(2.06e6, abs=1)  # when it arrived
    assert by_name["waiting"]["dur"] == pytest.approx(30e3, abs=1)
    assert by_name["communication"]["dur"] == pytest.approx(10e3, abs=1)
    assert by_name["step 1"]["args"]["exact_ms"] == {
        **{"data": 10, "compute": 40, "callbacks": 0, "waiting": 30, "communication": 10}
    }
    assert by_name["step 1"]["args"]["samples"] == 6


def test_all_workers_stand_on_one_clock(tmp_path: Path) -> None:
    events = traced(a_run(tmp_path))
    ends = [one["ts"] + one["dur"] for worker in (0, 1) for one in slices(events, worker) if one["name"] == "step 1"]
    assert ends == pytest.approx([2.1e6, 2.1e6], abs=1)


def test_what_happened_is_on_the_track_of_the_run(tmp_path: Path) -> None:
    events = traced(a_run(tmp_path))
    instants = {one["name"]: one for one in events if one["ph"] == "i"}
    assert list(instants) == ["start", "failure", "regroup", "epoch", "checkpoint", "warning", "end"]
    assert instants["failure"]["ts"] == pytest.approx(2.25e6, abs=1)
    assert instants["failure"]["args"]["text"] == "worker 1 on here was lost: killed; 1 left"
    between = [(one["name"], one["ts"], one["dur"]) for one in events if one["ph"] == "X" and one["pid"] == 0]
    assert [(name, length) for name, _, length in between] == [("evaluation after epoch 1", 30e3), ("saving", 5e3)]
    assert [at for _, at, _ in between] == pytest.approx([2.4e6, 2.45e6], abs=1)  # not when the file was complete
    counters = [(one["name"], next(iter(one["args"].values()))) for one in events if one["ph"] == "C"]
    assert [value for name, value in counters if name == "loss"] == [3.0, 2.0, 1.0]
    assert [value for name, value in counters if name == "samples/s"] == [120.0, 120.0, 60.0]
    names = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {"run", "worker 0 (here, cpu)", "worker 1 (here, cpu)"}


@pytest.mark.parametrize(
    ("text", "steps"),
    [("2:3", (2, 3)), ("2:", (2, 3)), (":1", (1, 1)), ("3:3", (3, 3)), (":", (1, 3))],
)
def test_some_steps_only(text: str, steps: tuple[int, int], tmp_path: Path) -> None:
    events = traced(a_run(tmp_path), parse_steps(text))
    assert_sound(events)
    shown = [int(one["name"].split()[1]) for one in slices(events, 0) if one["name"].startswith("step")]
    assert shown == list(range(steps[0], steps[1] + 1))
    assert any(one["name"] == "failure" for one in events) == (steps[1] >= 2 and steps[0] <= 3)


@pytest.mark.parametrize("text", ["5", "0:3", "4:2", "a:b", "1:2:3", "-1:3"])
def test_a_range_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="expected A:B"):
        parse_steps(text)


@pytest.mark.parametrize("seed", range(10))
def test_steps_never_overlap_whatever_was_stamped(seed: int, tmp_path: Path) -> None:
    """Also with collectives inside the passes, and with long updates after the collective."""
    chance = random.Random(seed)
    made, at = start(0.0, 1), 2.0
    for number in range(49):
        at += chance.choice([0.0, 0.001, 0.02, 0.1])
        parts = tuple(chance.choice([0.0, chance.random() * 50]) for _ in range(3))
        made.append(times(9.0, 0, number, [at], (*parts, 0.0), 6))
    events = traced(write(tmp_path, made))
    assert_sound(events)
    assert len([one for one in slices(events, 0) if one["name"].startswith("step")]) == 49


def test_callbacks_stand_before_what_comes_after_them(tmp_path: Path) -> None:
    made = [times(2.2, 0, 0, [2.1, 2.2], (10.0, 40.0, 10.0, 0.0), 6, callbacks=30.0)]
    events = traced(write(tmp_path, [*start(0.0, 1), *made]))
    assert_sound(events)
    laid = [(one["name"], one["dur"]) for one in slices(events, 0)][:5]
    assert [name for name, _ in laid] == ["step 1", "callbacks", "data", "compute", "communication"]
    assert [length for _, length in laid] == pytest.approx([90e3, 30e3, 10e3, 40e3, 10e3], abs=1)


def test_a_long_run_with_a_resume(tmp_path: Path) -> None:
    write(tmp_path, long_run(500, 3))
    write(tmp_path, [*start(60.0, 2, resume=True, steps=400), step(62.0, 401)])
    events = traced(tmp_path)
    assert_sound(events)
    assert len([one for one in slices(events, 2) if one["name"].startswith("step")]) == 500
    assert [one["name"] for one in events if one["ph"] == "i"] == ["start", "resume"]


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    made = [times(9.0, 0, 0, [2.0, 2.5, 2.4, 2.3, 3.0], (10.0, 90.0, 300.0, 0.0), 6)]
    events = traced(write(tmp_path, [*start(0.0, 1), *made]))
    assert_sound(events)
    assert len([one for one in slices(events, 0) if one["name"].startswith("step")]) == 5


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    a_run(tmp_path)
    with pytest.raises(StorageError, match=r"cannot write .*nowhere"):
        write_trace(tmp_path, tmp_path / "nowhere" / "trace.json")


# ------------------------------------------------------------- TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the package tensorboard is not there"
    )
    made = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    made.Reload()
    return {tag: [(one.step, one.value) for one in made.Scalars(tag)] for tag in made.Tags()["scalars"]}


def test_scalars_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not there")
    a_run(tmp_path / "run")
    for _ in range(2):  # the second time replaces the first
        write_tensorboard(tmp_path / "run", tmp_path / "board")
    found = scalars(tmp_path / "board")
    assert len(list((tmp_path / "board").iterdir())) == 1
    assert found["train/loss"] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert found["train/step_ms"] == [(1, 100.0), (2, 100.0), (3, 200.0)]
    assert found["train/samples_per_s"] == [(1, 120.0), (2, 120.0), (3, 60.0)]
    assert found["validation/accuracy"] == [(3, 0.25)]
    assert [value for _, value in found["time/compute_ms"]] == pytest.approx([55.0, 55.0, 40.0])
    assert [value for _, value in found["time/waiting_ms"]] == pytest.approx([15.0, 15.0, 0.0], abs=1e-3)


def test_learning_rate_and_gradient_norm_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not there")
    known, old = step(2.0, 1, lr=0.5, grad_norm=2.0), step(2.2, 3)
    del old["lr"], old["grad_norm"]
    write(tmp_path, [*start(0.0, 1), known, step(2.1, 2, lr=0.25, grad_norm=None), old])
    write_tensorboard(tmp_path, tmp_path / "board")
    found = scalars(tmp_path / "board")
    assert found["train/lr"] == [(1, 0.5), (2, 0.25)] and found["train/grad_norm"] == [(1, 2.0)]


def test_what_is_done_again_replaces_what_was(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not there")
    write(tmp_path, [*start(0.0, 1), *(step(2.0 + number, number, loss=1.0) for number in range(1, 6))])
    write(tmp_path, [*start(60.0, 1, resume=True, steps=3), step(62.0, 4, loss=2.0)])
    write_tensorboard(tmp_path, tmp_path / "board")
    assert scalars(tmp_path / "board")["train/loss"] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)]


def test_tensorboard_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_run(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'cordee\[tensorboard\]'"):
        write_tensorboard(tmp_path, tmp_path / "board")


def test_the_origin_is_the_first_record(tmp_path: Path) -> None:
    assert T0 > 1e9
    assert min(one["ts"] for one in traced(a_run(tmp_path)) if "ts" in one) == 0
