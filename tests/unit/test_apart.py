"""Parts of a state that lie apart: what makes a whole one, what is kept, and how they come to another host."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cordee.core.events import Event, StrangerEvent, WarningEvent
from cordee.group.bulk import Gone, dial
from cordee.group.messages import Who
from cordee.group.sliced import Place as Box
from cordee.group.wire import LOOPBACK, Address
from cordee.runtime import keeping
from cordee.runtime.keeping import Kept
from cordee.state import peers
from cordee.state.apart import KEPT, Part, assemble, parts_in
from cordee.state.checkpoint import Checkpoints
from cordee.state.layout import Owners, read_folder
from cordee.state.naming import Slice, Snapshot
from cordee.train import copying
from cordee.train.copying import Copier, Memory
from harness import DEADLINE_S, until

WHOLE = torch.arange(12.0).reshape(4, 3)


def snapshot(owner: int, step: int) -> Snapshot:
    """One of two owners' halves of a tensor that grows with the steps."""
    rows = WHOLE[2 * owner : 2 * owner + 2] + step
    places = {"model.w": Slice([Box([2 * owner, 0], [0, 0], [2, 3])], [4, 3], frozenset({"slice"}))}
    meta = {"aliases": {}, "model": {}, "optimizers": {}, "extra": {"step": step}}
    return Snapshot({"model.w": rows.clone()}, meta, places)


def whole(step: int) -> Snapshot:
    """What one worker that owns all of it would write."""
    return Snapshot({"model.w": WHOLE + step}, snapshot(0, step).meta)


def copy(memory: Memory, owner: int, step: int, told: list[Event] | None = None, token: str = "ab-0") -> None:
    copier = Copier(memory, owner, (told if told is not None else []).append)
    copier.write(snapshot(owner, step), Owners(owner, 2, token), step, {}, lambda: None)


def value(folder: Path, step: int) -> torch.Tensor:
    return read_folder(folder / f"step-{step:08d}").tensors["model.w"]


def test_the_newest_state_of_which_no_part_is_missing_is_taken(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    for step in (3, 6, 9):
        for owner in (0, 1) if step < 9 else (0,):
            copy(memory, owner, step)
    assert assemble(tmp_path) == 6
    assert torch.equal(value(tmp_path, 6), WHOLE + 6)
    assert read_folder(tmp_path / "step-00000006").meta["extra"] == {"step": 6}
    assert [one.name for one in tmp_path.iterdir()] == ["step-00000006"]
    assert assemble(tmp_path) == 6  # asked again, with nothing newer
    copy(memory, 1, 9)
    assert assemble(tmp_path) == 6  # the other half of step 9 is gone
    for owner in (0, 1):
        copy(memory, owner, 12)
    assert assemble(tmp_path) == 12
    assert [one.name for one in tmp_path.iterdir()] == ["step-00000012"]


def test_parts_of_two_replicas_are_no_whole(tmp_path: Path) -> None:
    copy(Memory(tmp_path), 0, 3, token="ab-0")
    copy(Memory(tmp_path), 1, 3, token="ab-1")
    assert assemble(tmp_path) is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "text", "gone"])
def test_a_damaged_part_is_passed_over(tmp_path: Path, damage: str) -> None:
    for step in (3, 6):
        for owner in (0, 1):
            copy(Memory(tmp_path), owner, step)
    part = Part(6, "ab-0", 1)
    if damage == "cut":
        part.tensors(tmp_path).write_bytes(part.tensors(tmp_path).read_bytes()[:-1])
    elif damage == "text":
        part.description(tmp_path).write_text('{"count": 2')
    else:
        part.tensors(tmp_path).unlink()
    assert assemble(tmp_path) == 3
    assert torch.equal(value(tmp_path, 3), WHOLE + 3)


def test_so_many_parts_are_kept_that_a_slower_owner_finds_its_counterpart(tmp_path: Path) -> None:
    copy(Memory(tmp_path), 1, 3)
    for step in (3, 6, 9):
        copy(Memory(tmp_path), 0, step)
    assert len(parts_in(tmp_path)) == KEPT + 1
    copy(Memory(tmp_path), 0, 12)
    assert [(one.step, one.number) for one in parts_in(tmp_path)] == [(3, 1), (6, 0), (9, 0), (12, 0)]


def test_the_newest_of_memory_and_disk_is_read(tmp_path: Path) -> None:
    disk, memory = Checkpoints(tmp_path / "disk"), tmp_path / "memory"
    disk.save(whole(5), step=5, wait=True)
    memory.mkdir()
    assert disk.read_latest(memory)[0].meta["extra"] == {"step": 5}  # type: ignore[union-attr]
    for owner in (0, 1):
        copy(Memory(memory), owner, 6)
    assemble(memory)
    assert disk.read_latest(memory)[0].meta["extra"] == {"step": 6}  # type: ignore[union-attr]
    disk.save(whole(7), step=7, wait=True)
    assert disk.read_latest(memory)[0].meta["extra"] == {"step": 7}  # type: ignore[union-attr]


# ------------------------------------------------------------- on the wire


@pytest.fixture
def address() -> Address:
    return Address(LOOPBACK, 0, secrets.token_hex(32))


@pytest.fixture
def kept(address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """The memory of another host."""
    (shm := tmp_path / "shm").mkdir()
    monkeypatch.setattr(keeping, "MEMORY", shm)
    with Kept(True, LOOPBACK, address) as made:
        yield made
    assert not list(shm.iterdir())


def towards(kept: Kept, address: Address) -> Address:
    assert kept.place is not None
    return Address(LOOPBACK, kept.place.port, address.token)


def test_what_one_owner_has_comes_to_the_host_of_the_other(kept: Kept, address: Address, tmp_path: Path) -> None:
    assert kept.folder is not None and kept.is_empty()
    (own := tmp_path / "own").mkdir()
    copier = Copier(Memory(own, towards(kept, address)), 1, lambda event: None)
    for step in (3, 6):
        copy(Memory(kept.folder), 0, step)
        copier.write(snapshot(1, step), Owners(1, 2, "ab-0"), step, {}, lambda: None)
    assert kept.newest() == 6
    assert torch.equal(value(kept.folder, 6), WHOLE + 6)
    assert [one.step for one in parts_in(own)] == [3, 6]
    assert kept.write_down(tmp_path / "run") == 6  # and a run that ends there has a checkpoint
    assert torch.equal(value(tmp_path / "run" / "checkpoints", 6), WHOLE + 6)
    assert kept.write_down(tmp_path / "run") is None


def test_a_host_gives_all_it_has_to_the_one_that_reads(kept: Kept, address: Address, tmp_path: Path) -> None:
    assert kept.folder is not None and kept.place is not None
    with Kept(True, "", address) as other:
        assert other.folder is not None
        for owner in (0, 1):
            copy(Memory(other.folder), owner, 9)
        other.bring(kept.place)
        other.bring(kept.place)  # what is there already is not sent
    assert kept.newest() == 9


def test_a_host_that_is_gone_or_full_costs_a_copy_and_nothing_else(
    kept: Kept, address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own := tmp_path / "own").mkdir()
    told: list[Event] = []
    monkeypatch.setattr(peers, "available_memory", lambda: 10)
    copy(Memory(own, towards(kept, address)), 0, 3, told)
    copy(Memory(own, Address(LOOPBACK, 1, address.token)), 0, 6, told)
    monkeypatch.setattr(copying, "available_memory", lambda: 10)
    copy(Memory(own), 0, 9, told)
    messages = [one.message for one in told if isinstance(one, WarningEvent)]
    assert len(messages) == len(told) == 3
    assert "did not take a copy of the state of step 3: it has 0 MiB of memory left" in messages[0]
    assert "did not take a copy of the state of step 6" in messages[1]
    assert "the state of step 9 was not copied into memory" in messages[2]
    assert [one.step for one in parts_in(own)] == [3, 6] and kept.is_empty()


@pytest.mark.parametrize(
    "offer",
    [
        {"step": 1, "token": "../../x", "number": 0, "text": 2, "tensors": 2},
        {"step": 1, "token": "a", "number": -1, "text": 2, "tensors": 2},
        {"step": 1, "token": "a", "number": 0, "text": 1 << 40, "tensors": 2},
        {"step": "1"},
    ],
)
def test_what_is_no_part_is_refused(kept: Kept, address: Address, offer: dict[str, object]) -> None:
    told: list[Event] = []
    kept.tell = told.append
    with pytest.raises(Gone):
        dial(replace(towards(kept, address), token=secrets.token_hex(32)), Who("worker", "x", 0), DEADLINE_S)
    until(lambda: told)
    assert [type(one) for one in told] == [StrangerEvent]
    link = dial(towards(kept, address), Who("worker", "x", 0), DEADLINE_S)
    link.send(offer)
    with pytest.raises(Gone):
        link.receive(json.loads)
    link.close()
    assert kept.is_empty()


def test_a_part_that_is_cut_short_is_not_there(kept: Kept, address: Address, tmp_path: Path) -> None:
    assert kept.folder is not None
    link = dial(towards(kept, address), Who("worker", "x", 0), DEADLINE_S)
    link.send({"step": 3, "token": "a", "number": 0, "text": 2, "tensors": 1 << 20})
    assert link.receive(json.loads)["wanted"]
    link.send({"wanted": True}, [memoryview(b"{}" + bytes(1000))])
    link.close()
    until(lambda: list(kept.folder.glob("parts-*")))  # type: ignore[union-attr]
    assert kept.is_empty() and kept.newest() is None
