"""A signal in the instant in which a twin is put on record."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cordee.core.errors import Interrupted
from cordee.twin.cluster import Cluster
from cordee.twin.registry import Entry, Registry
from cordee.twin.twin import Twin


def test_a_twin_that_is_on_record_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Entry.write

    def interrupted(entry: Entry, folder: Path | None = None) -> None:
        write(entry, folder)
        monkeypatch.setattr(Entry, "write", write)
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(number: int, frame: object) -> None:
        raise Interrupted("stopped")

    monkeypatch.setattr(Entry, "write", interrupted)
    before = signal.signal(signal.SIGTERM, stop)
    registry = Registry(tmp_path / "twins")
    try:
        with pytest.raises(Interrupted):
            Twin.up(Cluster.parse("2"), registry, processes=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert registry.entries() == []
    assert [path.name for path in (tmp_path / "twins").iterdir() if path.is_dir()] == []
