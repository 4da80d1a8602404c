"""Nonsense is refused with the line and the statement, before anything is made."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from alone import command

NO_PROGRAMS = {**os.environ, "PATH": "/nowhere"}
"""Whoever tries to make something fails, and says so: a refusal that is not about this came before it."""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--schedule", "at step 3: cutt b"], "schedule, line 1, 'at step 3: cutt b': 'cutt b' is no action"),
        (["--schedule", "at 1 s: cut b\nat 2 s: cut d"], "'at 2 s: cut d': there is no host 'd'; the hosts"),
        (["--schedule", "at step 3: kill worker 2"], "there is no worker 2: expected one from 0 to 1"),
        (["--schedule", "at step 3: set b link=9"], "link=9: expected a speed"),
        (["--schedule", "at 1 s: cut b; " * 40 + "at 2: cut b"], "line 1, 'at 2: cut b': 'at 2' is no moment"),
        (["--hosts", "2 cpu=1"], "hosts '2 cpu=1': '2' is not key=value; expected such as '2 x"),
        (["--hosts", "2 x link=fast"], "link=fast: expected a speed from 100kbit to 100gbit"),
        (["--name", "x"], "--hosts makes a new twin, --name takes one that is up: give one of them"),
        (["--nonsense", "--schedule", "every: cut b"], "'every' is no moment: expected `at step 30`"),
        (["--port", "0"], "invalid value for '--port': "),
        (["--schedule", "/tmp"], "--schedule /tmp: there is no such file, and it is not a statement such as"),
        (["--schedule", "faults.txt"], "--schedule faults.txt: there is no such file, and it is not a statement"),
        (["--schedule", "my jobs/faults"], "--schedule my jobs/faults: there is no such file"),
        (["--workers", "2"], "--workers cannot be given here: each host has its own number of workers, such as"),
        (["--script", "--nodes=2"], "--nodes cannot be given here: the hosts of a twin find each other by themselves"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_before_anything_is_made(words: list[str], message: str, job: Path, tmp_path: Path) -> None:
    hosts = [] if "--hosts" in words else ["--hosts", "2"]
    done = command("twin", "run", job, "--out", tmp_path / "out", *hosts, *words, env=NO_PROGRAMS)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("cordee: ") and message in done.stderr and done.stdout == ""
    assert not (tmp_path / "out").exists()


def test_a_schedule_in_a_file_is_read(job: Path, tmp_path: Path) -> None:
    file = tmp_path / "faults.txt"
    file.write_text("\ufeff# two faults\n\nat step 3: cut b\nat step 4: mendd b\n")
    done = command("twin", "run", job, "--hosts", "2", "--schedule", file, env=NO_PROGRAMS)
    assert done.returncode == 2 and "schedule, line 4, 'at step 4: mendd b'" in done.stderr
    file.write_bytes(b"\xff\xfe at step 3")
    done = command("twin", "run", job, "--hosts", "2", "--schedule", file, env=NO_PROGRAMS)
    assert done.returncode == 2 and f"--schedule {file}: it cannot be read as text" in done.stderr


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    done = command("twin", "run", tmp_path / "none.py", "--hosts", "2", env=NO_PROGRAMS)
    assert done.returncode == 2 and f"there is no file {tmp_path / 'none.py'}" in done.stderr


def test_mere_processes_have_nothing_to_cut(job: Path, tmp_path: Path) -> None:
    words = ["--hosts", "2", "--processes", "--out", tmp_path / "out"]
    done = command("twin", "run", job, *words, "--schedule", "at step 3: kill worker 1 and cut b")
    assert done.returncode == 2 and "'at step 3: kill worker 1 and cut b': the hosts of twin" in done.stderr
    assert "are mere processes, without links" in done.stderr
    done = command("twin", "run", job, "--hosts", "link=1mbit", "--processes", "--out", tmp_path / "out")
    assert done.returncode == 2 and "host a cannot have a link: it is a mere process" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = command("twin", "run", job, *words, "--port", port)
        assert (
            done.returncode == 2 and f"port {port} of this machine is in use: choose another with --port" in done.stderr
        )
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_said_and_what_is_possible_is_offered(job: Path) -> None:
    done = command("twin", "run", job, "--hosts", "2 x link=10mbit", env=NO_PROGRAMS)
    assert done.returncode == 2 and "ip and tc missing (install iproute2)" in done.stderr
    assert "What is possible: --processes, and hosts without link=" in done.stderr
