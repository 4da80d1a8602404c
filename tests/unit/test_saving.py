"""A checkpoint counts when it stands, and a run that ends early waits for it, within bounds."""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from cordee.core.events import CheckpointEvent, WarningEvent
from cordee.group.channel import Channel
from cordee.group.messages import Saving, Who
from cordee.group.wire import Address
from cordee.runtime.coordinator.hub import Hub
from cordee.state import checkpoint, layout, staging
from cordee.state.naming import Snapshot
from cordee.train import saving
from cordee.train.job import Save
from cordee.train.saving import Saver
from harness import DEADLINE_S

T = TypeVar("T")


class Disk:
    """Writes nothing before it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.fails = False

    def write_folder(self, *args: Any, **more: Any) -> int:
        assert self.go.wait(DEADLINE_S)
        if self.fails:
            raise OSError(28, "No space left on device")
        return layout.write_folder(*args, **more)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(checkpoint, "write_folder", made.write_folder)
    yield made
    made.go.set()


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub(Address("127.0.0.1", 0, secrets.token_hex(32)), expected=1)
    yield made
    made.close()


@pytest.fixture
def channel(hub: Hub) -> Iterator[Channel]:
    made = Channel(hub.address, 0, "here")
    yield made
    made.close()


def heard(hub: Hub, kind: type[T]) -> T:
    """The next notice of this kind; those of other kinds are passed over."""
    while not isinstance(notice := hub.notices.get(timeout=DEADLINE_S)[1], kind):
        pass
    return notice


def begun(folder: Path, channel: Channel) -> Saver:
    saver = Saver(folder, Save(), channel)
    saver.write(6, lambda: Snapshot({"w": torch.ones(3)}), {})
    return saver


def test_a_checkpoint_is_told_of_when_it_stands(tmp_path: Path, disk: Disk, hub: Hub, channel: Channel) -> None:
    saver = begun(tmp_path, channel)
    channel.send()
    channel.post(WarningEvent("x"))
    channel.send()
    assert isinstance(hub.notices.get(timeout=DEADLINE_S)[1], Who)
    assert isinstance(hub.notices.get(timeout=DEADLINE_S)[1], WarningEvent)  # and nothing of a checkpoint before it
    disk.go.set()
    assert heard(hub, CheckpointEvent).step == 6
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000006"]
    saver.close()


def test_nobody_waits_for_a_checkpoint_that_stands(tmp_path: Path, disk: Disk, hub: Hub, channel: Channel) -> None:
    disk.go.set()
    saver = begun(tmp_path, channel)
    saver.close()
    saver.see_through()
    channel.send()
    heard(hub, CheckpointEvent)
    with pytest.raises(queue.Empty):
        hub.notices.get(timeout=0.05)


def test_a_checkpoint_is_waited_for_within_a_bound(tmp_path: Path, disk: Disk, hub: Hub, channel: Channel) -> None:
    saver = begun(tmp_path, channel)
    saver.see_through(most_s=0.02, word_s=0.01)
    saving = heard(hub, Saving)
    assert saving.step == 6 and saving.seconds > 0.02  # the launcher hears how it ended
    assert "waiting for the checkpoint of step 6" in heard(hub, WarningEvent).message
    assert "the checkpoint of step 6 was not written within" in heard(hub, WarningEvent).message


def test_a_checkpoint_that_fails_at_the_end_is_told_of(tmp_path: Path, disk: Disk, hub: Hub, channel: Channel) -> None:
    disk.fails = True
    saver = begun(tmp_path, channel)
    threading.Timer(0.05, disk.go.set).start()
    saver.see_through()
    message = heard(hub, WarningEvent).message
    assert message.startswith("the checkpoint of step 6 was not written: ") and "No space left on device" in message


def test_what_is_left_to_do_is_done_once_and_awaited_by_all(channel: Channel) -> None:
    """The failing worker and the launcher's word to end may come at the same time."""
    inside, go, done = threading.Event(), threading.Event(), []

    def left() -> None:
        inside.set()
        assert go.wait(DEADLINE_S)
        done.append("done")
        raise OSError("nobody is told of this")

    channel.before_end = left
    first = threading.Thread(target=channel.part)
    first.start()
    assert inside.wait(DEADLINE_S)
    other = threading.Thread(target=lambda: (channel.part(), done.append("other goes on")))
    other.start()
    go.set()
    first.join(DEADLINE_S)
    other.join(DEADLINE_S)
    assert done == ["done", "other goes on"]


@pytest.mark.parametrize("room", [True, False], ids=["copied", "too little memory"])
def test_the_next_update_waits_for_a_copy_not_for_the_disk(
    tmp_path: Path, disk: Disk, hub: Hub, channel: Channel, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    monkeypatch.setattr(saving, "COPIED_BYTES", 0)
    monkeypatch.setattr(staging, "available_memory", lambda: 2**40 if room else 0)
    saver, weight = Saver(tmp_path, Save(), channel), torch.ones(1000)
    saver.write(6, lambda: Snapshot({"w": weight}), {})
    if not room:
        threading.Timer(0.05, disk.go.set).start()
    saver.before_update()
    weight.zero_()
    disk.go.set()
    saver.close()
    assert saver._checkpoints.read(6).tensors["w"].eq(1).all()
    channel.send()
    assert heard(hub, CheckpointEvent).ms > 0
