"""After every test of this folder: no process of a run is left."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from harness import descendants

LEFT_S = 5.0


@pytest.fixture(autouse=True)
def nothing_is_left(warm: int) -> Iterator[None]:
    yield
    deadline = time.monotonic() + LEFT_S
    while descendants(warm) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert descendants(warm) == set()
