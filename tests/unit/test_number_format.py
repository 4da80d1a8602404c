"""Number formats: what a user is told, what is remembered, and children that crash or hang."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from cordee.diagnose import number_format as module
from cordee.diagnose.child import Ended, run_child
from cordee.diagnose.number_format import NumberFormat, judge, processor, recall_format, try_format
from harness import stat_of

VARIABLE = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}

# What a child may do, as programs of their own.
WELL = "print('hello'); print(1.5)"
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
HANG = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
CRASH_UNLESS_SET = """
import os, signal
if os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX512_CORE_BF16":
    os.kill(os.getpid(), signal.SIGILL)
print(0.5)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, and no variable from outside."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    return tmp_path / "cache" / "cordee"


def child(monkeypatch: pytest.MonkeyPatch, program: str, count: Path | None = None) -> None:
    """Let the next trials run this program; `count` grows by a byte at every start."""
    counted = f"open({str(count)!r}, 'a').write('x')\n" if count else ""
    monkeypatch.setattr(module, "command", lambda *given: [sys.executable, "-c", counted + program])


# ------------------------------------------------------------- sentences


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            NumberFormat("bf16", "cpu", True, 0.55),
            "bf16 on this CPU works and takes 1.8 times as long as fp32: precision=fp32 is the faster choice",
        ),
        (
            NumberFormat("bf16", "cuda:0", True, 7.25),
            "bf16 on cuda:0 works and is 7.2 times as fast as fp32: precision=bf16 is the faster choice",
        ),
        (
            NumberFormat("fp16", "cpu", True, 0.04),
            "fp16 on this CPU works and takes 25.0 times as long as fp32: precision=fp32 is the faster choice",
        ),
        (
            NumberFormat("fp16", "cpu", True, 1.01),
            "fp16 on this CPU works and takes as long as fp32: precision=fp16 saves memory, not time",
        ),
        (
            NumberFormat("bf16", "cpu", True, 0.5, VARIABLE, "killed by SIGILL"),
            "bf16 crashes this CPU's oneDNN (killed by SIGILL) unless "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 is set before the start; with it, it works and takes 2.0 times "
            "as long as fp32: precision=fp32 is the faster choice",
        ),
        (
            NumberFormat("fp16", "cpu", False, 0.0, reason="it did not end within 60 s"),
            "fp16 does not work on this CPU: it did not end within 60 s; precision=fp32 remains",
        ),
    ],
)
def test_a_user_reads_what_it_means(found: NumberFormat, sentence: str) -> None:
    assert found.sentence == sentence


@pytest.mark.parametrize(
    ("ended", "works", "reason"),
    [
        (Ended(0, "a warning\n2.5\n"), True, ""),
        (Ended(0, "hello\n"), False, "its answer makes no sense: 'hello\\n'"),
        (Ended(0, "0.0"), False, "its answer makes no sense"),
        (Ended(-4), False, "killed by SIGILL"),
        (Ended(1, "", "Traceback\nRuntimeError: no Half\n\n"), False, "RuntimeError: no Half"),
        (Ended(1), False, "it ended with exit code 1 and without a word"),
        (Ended(None, error="it did not end within 7 s"), False, "it did not end within 7 s"),
    ],
)
def test_the_end_of_a_child_is_judged(ended: Ended, works: bool, reason: str) -> None:
    found = judge("bf16", "cpu", ended)
    assert found.works is works
    assert found.speed == (2.5 if works else 0.0)
    assert reason in found.reason and (works or found.reason)


# ------------------------------------------------------------- children


def test_a_child_killed_by_an_illegal_instruction_is_tried_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, CRASH_UNLESS_SET)
    assert try_format("bf16") == NumberFormat("bf16", "cpu", True, 0.5, VARIABLE, "killed by SIGILL")


def test_a_variable_that_is_set_already_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    child(monkeypatch, CRASH_UNLESS_SET)
    assert try_format("bf16").environment == {}


def test_a_child_that_always_crashes_leaves_us_alive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    child(monkeypatch, CRASH, starts)
    found = try_format("fp16")
    assert not found.works and found.speed == 0 and "SIGILL" in found.reason
    assert len(starts.read_text()) == 3, "without, and with each of two variables"
    assert try_format("fp16") == found
    assert len(starts.read_text()) == 3, "a processor does not learn instructions: it is remembered"


def test_a_hanging_child_is_ended_at_its_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    pid = tmp_path / "pid"
    monkeypatch.setattr(module, "command", lambda *given: [sys.executable, "-c", HANG, str(pid)])
    found = try_format("bf16", timeout_s=2.0)
    assert (found.works, found.reason) == (False, "it did not end within 2 s")
    if pid.exists() and (number := pid.read_text()):  # on a very busy machine it never came so far
        assert stat_of(int(number)) is None, "the child still lives"
    assert not list(cache.glob("*")), "another time it may answer: nothing is remembered"


def test_a_program_that_is_not_there_is_an_answer_too() -> None:
    assert run_child(["no-such-program"], timeout_s=1.0).words.startswith("it could not begin: no-such-program")


# ------------------------------------------------------------- the cache


def test_a_result_is_remembered_until_a_fresh_one_is_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    child(monkeypatch, WELL, starts)
    assert recall_format("bf16") is None
    first = try_format("bf16")
    assert first == try_format("bf16") == recall_format("bf16") == NumberFormat("bf16", "cpu", True, 1.5)
    assert len(starts.read_text()) == 1
    try_format("bf16", fresh=True)
    assert len(starts.read_text()) == 2


def test_another_setting_is_another_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    child(monkeypatch, WELL, starts)
    try_format("bf16", threads=1)
    try_format("fp16", threads=1)
    try_format("bf16", threads=3)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    try_format("bf16", threads=1)
    assert len(starts.read_text()) == 4


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"key": 1}'])
def test_a_damaged_cache_is_measured_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path, damage: str
) -> None:
    starts = tmp_path / "starts"
    child(monkeypatch, WELL, starts)
    try_format("bf16")
    (file,) = cache.glob("format-*.json")
    file.write_text(damage)
    assert recall_format("bf16") is None
    assert try_format("bf16").works
    assert len(starts.read_text()) == 2
    assert recall_format("bf16") is not None, "the damaged file was replaced"


@pytest.mark.parametrize("change", [{"speed": "fast"}, {"works": 1}, {"environment": []}, {"unknown": 2}])
def test_a_cached_value_of_another_form_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, cache: Path, change: dict[str, object]
) -> None:
    child(monkeypatch, WELL)
    try_format("bf16")
    (file,) = cache.glob("format-*.json")
    content = json.loads(file.read_text())
    content.update(change)
    file.write_text(json.dumps(content))
    assert recall_format("bf16") is None


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # not even root makes a folder below a file
    child(monkeypatch, WELL)
    assert try_format("bf16").works
    assert recall_format("bf16") is None


def test_the_processor_is_told_by_what_does_not_change(tmp_path: Path) -> None:
    one = "processor\t: 0\nmodel name\t: Abacus 3\ncpu MHz\t\t: 2000\nflags\t\t: fpu amx\n"

    def told(cpuinfo: str) -> str:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
        return processor(tmp_path / "cpuinfo")

    other = one.replace("2000", "2100").replace(": 0", ": 1")
    assert told(f"{one}\n{other}") == told(other), "the clock's speed changes by the second"
    assert told(one.replace("amx", "")) != told(one)


# ------------------------------------------------------------- the real thing


@pytest.mark.slow
def test_formats_on_this_cpu_are_tried_for_real() -> None:
    found = try_format("bf16", threads=1)
    # Not every CPU can do it, but every answer is one of these.
    assert (found.works and found.speed > 0) or (not found.works and found.speed == 0 and found.reason)
    assert recall_format("bf16", threads=1) in (found, None)


@pytest.mark.gpu
def test_formats_on_a_gpu_are_tried_for_real() -> None:
    for precision in ("bf16", "fp16"):
        found = try_format(precision, "cuda:0")
        assert found.works, found.sentence
        assert replace(found, speed=1.0) == NumberFormat(precision, "cuda:0", True, 1.0)
