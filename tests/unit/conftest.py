"""What several unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cordee.twin.cluster import Cluster
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Twin]:
    """Hosts a and b, which are mere processes."""
    made = Twin.up(Cluster.parse("2"), Registry(tmp_path / "twins"), processes=True)
    try:
        yield made
    finally:
        made.down()


@pytest.fixture
def calm() -> Iterator[None]:
    """For tiny models: the same random numbers in every test, and one thread, for more would wait for each other."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
