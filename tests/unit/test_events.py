from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import StorageError
from cordee.core.eventlog import EventLog, count_events, read_events
from cordee.core.events import EVENTS, EndEvent, Event, FailureEvent, ResultEvent, StepEvent, TimesEvent, WarningEvent
from harness import DEADLINE_S


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    before = time.time()
    with closing(EventLog(path)) as log:
        log.write(StepEvent(1, epoch=0, loss=0.5, samples=250, ms=3.25))
        # Readable at once, while the run goes on.
        assert len(list(read_events(path))) == 1
        log.write(WarningEvent("zwei\nZeilen: é"))
    first, second = read_events(path)
    assert before - 1 <= first.time <= time.time() + 1
    assert first == StepEvent(1, epoch=0, loss=0.5, samples=250, ms=3.25, time=first.time)
    assert isinstance(second, WarningEvent) and second.message == "zwei\nZeilen: é"
    assert len(path.read_bytes().splitlines()) == 2


def test_records_of_a_kind_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with closing(EventLog(path)) as log:
        for message in ("a", '{"event":"failure","b"'):
            log.write(WarningEvent(message))
            log.write(FailureEvent(1, "h", "r", left=1))
    assert [count_events(path, kind) for kind in (FailureEvent, WarningEvent, EndEvent)] == [2, 2, 0]


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
    with closing(EventLog(path)) as log:
        log.write(ResultEvent({"it": given}))

    def never(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(path.read_text(encoding="utf-8"), parse_constant=never)["result"]["it"] == read


def test_a_value_that_is_none_of_these_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with closing(EventLog(path)) as log, pytest.raises(TypeError, match="JSON cannot hold"):
        log.write(ResultEvent({"it": object()}))
    assert path.read_bytes() == b""


def test_every_event_and_field_is_documented() -> None:
    for kind, one in EVENTS.items():
        assert kind == one.__name__.removesuffix("Event").lower() and one.__doc__ and one.__doc__ != Event.__doc__
    assert {"step", "epoch", "loss", "samples", "ms"} <= set(EVENTS["step"].__struct_fields__)


@pytest.mark.parametrize("size", [10, 5000, 4096])
def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_writer(size: int, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with closing(EventLog(path)) as log:
        log.write(WarningEvent("kept"))
    with path.open("ab") as file:
        file.write(b'{"event": "warning", "message": "' + b"x" * size)
    assert [event.message for event in read_events(path) if isinstance(event, WarningEvent)] == ["kept"]
    with closing(EventLog(path)) as log:
        log.write(WarningEvent("after"))
    assert [event.message for event in read_events(path) if isinstance(event, WarningEvent)] == ["kept", "after"]


def test_a_file_that_is_nothing_but_torn(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"eve')
    assert list(read_events(path)) == []
    EventLog(path).close()
    assert path.read_bytes() == b""


END = b'{"event":"end","time":1.5,"reason":"completed","code":0,"message":""}\n'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"event":', "JSON is malformed|truncated"),
        (
            b'{"event":"times","time":1.5,"worker":1,"from":7,"data_ms":[1],"compute_ms":[2],"blocked_ms":[3],'
            b'"waited_ms":[0],"samples":[4],"arrived":[5,6]}',
            "lists of one length",
        ),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"time":1.5}', "missing required field `event`"),
        (b'{"event":"of another version","time":1.5}', "Invalid value 'of another version'"),
        (b'{"event":"warning","time":1.5}', "missing required field `message`"),
        (b'{"event":"warning","time":1.5,"message":3}', r"Expected `str`, got `int` - at `\$.message`"),
        (b'{"event":"warning","time":1.5,"message":"a","mesage":"b"}', "unknown field `mesage`"),
        (b'{"event":"warning","time":NaN,"message":"a"}', "malformed"),
        (b'{"event":"end","time":1.5,"reason":"","code":-1}', r"Expected `int` >= 0 - at `\$.code`"),
        (b'{"event":"result","time":1.5,"result":{"a":' + b"[" * 100_000, "recursion"),
    ],
)
def test_damage_in_the_middle_is_named_with_what_was_expected(line: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(END + line + b"\n" + END)
    with pytest.raises(StorageError, match=rf"events\.jsonl is damaged: line 2 is no .*({expected})"):
        list(read_events(path))


def test_fields_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    former = [
        b'{"event":"step","time":1.5,"step":3,"epoch":0,"loss":null,"samples":4,"ms":2}',
        b'{"event":"times","time":1.5,"worker":1,"from":7,"data_ms":[1],"compute_ms":[2],"blocked_ms":[3],'
        b'"waited_ms":[0],"samples":[4],"arrived":[5]}',
        b'{"event":"end","time":1.5,"reason":"completed","code":0}',
    ]
    path.write_bytes(b"\n".join([*former, b""]))
    step, times, end = read_events(path)
    assert isinstance(step, StepEvent) and (step.loss, step.lr, step.moment) == (None, None, 1.5)
    assert isinstance(times, TimesEvent) and (times.first, times.callbacks_ms) == (7, [0.0])
    assert isinstance(end, EndEvent) and end.message == ""


def test_lines_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with closing(EventLog(path)) as log:

        def write(number: int) -> None:
            for _ in range(50):
                log.write(WarningEvent(str(number) * 2000))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=DEADLINE_S)
    messages = [event.message for event in read_events(path) if isinstance(event, WarningEvent)]
    assert sorted(messages) == sorted(str(number) * 2000 for number in range(4) for _ in range(50))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with (
        closing(EventLog("/dev/full")) as log,
        pytest.raises(StorageError, match="cannot write /dev/full: No space left"),
    ):
        log.write(WarningEvent("x"))


def test_a_line_that_the_disk_took_half_of_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with closing(EventLog(path)) as log:
            log.write(WarningEvent("kept"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
            with pytest.raises(StorageError, match="File too large"):
                log.write(WarningEvent("x" * 1000))
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            log.write(WarningEvent("after"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [event.message for event in read_events(path) if isinstance(event, WarningEvent)] == ["kept", "after"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*gone/events\.jsonl: No such file"):
        EventLog(tmp_path / "gone" / "events.jsonl")
