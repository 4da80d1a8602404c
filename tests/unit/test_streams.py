"""Standard output and error whose reader has gone."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from harness import DEADLINE_S

SAYS = """
import sys
from pathlib import Path
{before}
for number in range(10_000):
    print("line", number)
    print("line", number, file=sys.stderr)
Path(sys.argv[1]).write_text("came to its end")
"""
LASTING = "from cordee.runtime.streams import outlive_terminal; outlive_terminal()"


@pytest.mark.parametrize(("before", "ends"), [(LASTING, True), ("", False)])
@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_nobody_reads_any_more(kind: str, before: str, ends: bool, tmp_path: Path) -> None:
    theirs, ours = os.pipe() if kind == "pipe" else os.openpty()
    words = [sys.executable, "-c", SAYS.format(before=before), str(tmp_path / "end")]
    os.close(theirs)
    done = subprocess.run(words, stdout=ours, stderr=ours, timeout=DEADLINE_S, check=False)
    os.close(ours)
    assert (tmp_path / "end").exists() == ends
    assert (done.returncode == 0) == ends


def test_what_is_read_comes_as_before(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SAYS.format(before=LASTING), str(tmp_path / "end")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout == done.stderr == "".join(f"line {number}\n" for number in range(10_000))


def test_a_line_comes_when_it_is_printed() -> None:
    """Though nobody flushes, and it is a pipe that it goes to; a part of a line comes when it is flushed."""
    wait = "sys.stdin.readline()"  # unlike input() it does not flush
    says = f"import sys; print('one'); {wait}; print('two', end='', flush=True); {wait}; print('three')"
    words = [sys.executable, "-c", f"{LASTING}\n{says}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for expected in (b"one\n", b"two"):
            ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S / 10)
            said = os.read(process.stdout.fileno(), 100) if ready else b"nothing"
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert said == expected
        assert process.stdout.read() == b"three\n"


def test_a_full_disk_is_still_an_error() -> None:
    words = [sys.executable, "-c", f"{LASTING}\nprint('x', flush=True)"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode != 0 and "No space left" in done.stderr


def test_closed_streams_are_filled() -> None:
    """What is opened next does not take their numbers."""
    script = """
import os, sys
for number in (0, 1, 2):
    os.close(number)
from cordee.runtime.streams import fill_closed
fill_closed()
print("to stdout", flush=True)
print("to stderr", file=sys.stderr)
os.write(int(sys.argv[1]), f"{os.open('/', os.O_RDONLY)} {sys.stdin.read()!r}".encode())
"""
    reading, writing = os.pipe()
    with open(reading) as said:
        words = [sys.executable, "-c", script, str(writing)]
        done = subprocess.run(words, pass_fds=[writing], timeout=DEADLINE_S, check=False)
        os.close(writing)
        assert done.returncode == 0
        assert int(said.read().split()[0]) > 2
