"""After every test of this folder: no process of a run is left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import descendants, until


@pytest.fixture(autouse=True)
def nothing_is_left(warm: int) -> Iterator[None]:
    yield
    until(lambda: not descendants(warm))
