"""Data that cannot be read: the run ends after its deadline, and says which worker waited for what."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from cordee.core.errors import WaitedTooLong
from harness import train


@pytest.mark.parametrize(("workers", "hangs"), [(2, 1), (1, 0)])
def test_a_source_that_hangs_ends_the_run_after_its_deadline(
    warm: int, tmp_path: Path, workers: int, hangs: int
) -> None:
    who = rf"worker {hangs} on {re.escape(socket.gethostname())} waited longer than 10 s \(samples from a Hanging\)"
    with pytest.raises(WaitedTooLong, match=who):
        train("hanging", tmp_path / "run", workers=workers, deadline_s=10.0, worker=hangs)
