from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import StorageError
from cordee.core.events import EVENTS, EventLog, count_events, read_events
from harness import DEADLINE_S


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    before = time.time()
    with EventLog(path) as log:
        log.write("step", step=1, epoch=0, loss=0.5, samples=250, ms=3.25)
        # Readable at once, while the run goes on.
        assert len(list(read_events(path))) == 1
        log.write("warning", message="zwei\nZeilen: é")
    first, second = read_events(path)
    assert before - 1 <= first.pop("time") <= time.time() + 1
    assert first == {"event": "step", "step": 1, "epoch": 0, "loss": 0.5, "samples": 250, "ms": 3.25}
    assert second["message"] == "zwei\nZeilen: é"
    assert len(path.read_bytes().splitlines()) == 2


def test_records_of_a_kind_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert count_events(path, "failure") == 0
    with EventLog(path) as log:
        for message in ("a", '{"event":"failure","b"'):
            log.write("warning", message=message)
            log.write("failure", worker=1, host="h", reason="r", left=1)
    assert (count_events(path, "failure"), count_events(path, "warning"), count_events(path, "end")) == (2, 2, 0)


class Scalar:
    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (Scalar(1.5), 1.5),
        (Scalar(float("nan")), None),
        ({"a": (1, float("inf")), 2: Path("x")}, {"a": [1, None], "2": "x"}),
        (True, True),
        (None, None),
    ],
)
def test_values_become_plain_json(given: Any, read: Any, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write("result", result=given)

    def never(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(path.read_text(encoding="utf-8"), parse_constant=never)["result"] == read


def test_a_value_that_is_none_of_these_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log, pytest.raises(TypeError, match="JSON cannot hold"):
        log.write("warning", message=object())
    assert path.read_bytes() == b""


def test_only_documented_events_and_fields(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        with pytest.raises(AssertionError, match="'stop' is not in the table"):
            log.write("stop")
        with pytest.raises(AssertionError, match=r"no documented field \['lss'\]"):
            log.write("step", lss=1.0)
    assert {"step", "epoch", "loss", "samples", "ms"} <= set(EVENTS["step"])


@pytest.mark.parametrize("size", [10, 5000, 4096])
def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_writer(size: int, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write("warning", message="kept")
    with path.open("ab") as file:
        file.write(b'{"event": "warning", "message": "' + b"x" * size)
    assert [record["message"] for record in read_events(path)] == ["kept"]
    with EventLog(path) as log:
        log.write("warning", message="after")
    assert [record["message"] for record in read_events(path)] == ["kept", "after"]


def test_a_file_that_is_nothing_but_torn(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"eve')
    assert list(read_events(path)) == []
    EventLog(path).close()
    assert path.read_bytes() == b""


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "end", "time": 1}\n{"event": \n{"event": "end", "time": 1}\n')
    with pytest.raises(StorageError, match=r"events\.jsonl is damaged: line 2"):
        list(read_events(path))


def test_lines_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:

        def write(number: int) -> None:
            for _ in range(50):
                log.write("warning", message=str(number) * 2000)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=DEADLINE_S)
    messages = [record["message"] for record in read_events(path)]
    assert sorted(messages) == sorted(str(number) * 2000 for number in range(4) for _ in range(50))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with (
        EventLog("/dev/full") as log,
        pytest.raises(StorageError, match=r"/dev/full could not be written: No space left"),
    ):
        log.write("warning", message="x")


def test_a_line_that_the_disk_took_half_of_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with EventLog(path) as log:
            log.write("warning", message="kept")
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
            with pytest.raises(StorageError, match="File too large"):
                log.write("warning", message="x" * 1000)
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            log.write("warning", message="after")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [record["message"] for record in read_events(path)] == ["kept", "after"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gone/events\.jsonl could not be written: No such file"):
        EventLog(tmp_path / "gone" / "events.jsonl")
