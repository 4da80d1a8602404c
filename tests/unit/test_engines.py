"""Which processes a run has, as values."""

from __future__ import annotations

import secrets
import shutil
import threading
from pathlib import Path

import pytest

from cordee.core.errors import StorageError
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.group.wire import LOOPBACK, Address
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.engines.foreign import _keep
from cordee.runtime.engines.seam import seats
from cordee.runtime.launch import Launch
from cordee.runtime.recorder import Recorder
from cordee.runtime.spec import Target


def test_processes_are_numbered_host_by_host() -> None:
    found = seats([2, 1, 3])
    assert [seat.worker for seat in found] == [0, 1, 2, 3, 4, 5]
    places = [(seat.world.node, seat.world.local_rank, seat.world.local_size) for seat in found]
    assert places == [(0, 0, 2), (0, 1, 2), (1, 0, 1), (2, 0, 3), (2, 1, 3), (2, 2, 3)]
    assert {(seat.world.size, seat.world.nodes) for seat in found} == {(6, 3)}


def test_a_process_reads_its_place_from_its_environment() -> None:
    for seat in seats([1, 2]):
        assert World.from_env(seat.world.to_env()) == seat.world


def test_a_folder_that_vanishes_is_told_under_another_launcher_too(tmp_path: Path) -> None:
    recorder = Recorder(Launch(Target("job", "job.py"), 2, Plan(), tmp_path / "run"), lambda event: None)
    recorder.begin(2)
    hub = Hub(Address(LOOPBACK, 0, secrets.token_hex(32)), expected=2)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(StorageError, match="was removed or renamed"):
        _keep(hub, recorder, threading.Event())
    hub.close()
    recorder.close()
