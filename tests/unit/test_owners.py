"""A checkpoint that several workers hold in slices: written by all of them at once, committed by one index."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from cordee.core.errors import CheckpointError, WaitedTooLong, WorkersLost
from cordee.group.sliced import Place
from cordee.state.checkpoint import Checkpoints
from cordee.state.index import read_index, seal
from cordee.state.layout import Owners
from cordee.state.naming import Slice, Snapshot, capture, restore

WHOLE = torch.arange(24.0).reshape(4, 6)
BIAS = torch.arange(3.0)
SLICE = frozenset({"slice"})


def snapshot(number: int, count: int) -> Snapshot:
    """What owner `number` holds: some columns of one tensor, and all of another."""
    width = WHOLE.shape[1] // count
    part = WHOLE[:, number * width : (number + 1) * width].contiguous()
    tensors = {"model.w": part, "model.b": BIAS}
    place = Place([0, number * width], [0, 0], list(part.shape))
    return Snapshot(tensors, {"aliases": {}, "model": {}}, {"model.w": Slice([place], [4, 6], SLICE)})


def owner(folder: Path, number: int, count: int, **more: float) -> Checkpoints:
    owners = Owners(number, count, "run", copied=SLICE if number else frozenset())
    return Checkpoints(folder, owners=owners, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_slices_of_all_owners_make_the_whole(tmp_path: Path, count: int) -> None:
    writers = [owner(tmp_path, number, count) for number in range(count)]
    for step in (3, 5):
        with ThreadPoolExecutor() as pool:
            saves = [
                pool.submit(one.save, snapshot(number, count), step=step, wait=True)
                for number, one in reversed([*enumerate(writers)])
            ]
        assert [save.result(30) for save in saves] == [None] * count
    reader = Checkpoints(tmp_path)
    assert [step for step, _ in reader.list()] == [3, 5]
    found = reader.read(5)
    assert torch.equal(found.tensors["model.w"], WHOLE) and torch.equal(found.tensors["model.b"], BIAS)
    assert len(read_index(tmp_path / "step-00000005")["tensors"]["model.w"]["slices"]) == count
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(("part-", "."))]


def test_slices_of_any_form_are_put_together_and_a_missing_one_is_seen(tmp_path: Path) -> None:
    cuts = [(slice(0, 4), slice(0, 2)), (slice(0, 3), slice(2, 6)), (slice(3, 4), slice(2, 6))]
    with ThreadPoolExecutor() as pool:
        for number, cut in enumerate(cuts):
            part = WHOLE[cut].contiguous()
            place = Place([one.start for one in cut], [0, 0], list(part.shape))
            held = Snapshot({"w": part}, {}, {"w": Slice([place], [4, 6], SLICE)})
            pool.submit(owner(tmp_path, number, 3).save, held, step=1, wait=True)
    checkpoints = Checkpoints(tmp_path)
    assert torch.equal(checkpoints.read(1).tensors["w"], WHOLE)
    path = tmp_path / "step-00000001" / "checkpoint.json"
    body = json.loads(path.read_text())
    del body["sha256"]
    body["tensors"]["w"]["slices"].pop()
    path.write_text(json.dumps({"sha256": seal(body), **body}))
    with pytest.raises(CheckpointError, match="slices hold 20 of 24 elements"):
        checkpoints.read(1)


def test_without_one_owner_nothing_is_committed(tmp_path: Path) -> None:
    first = owner(tmp_path, 0, 2, deadline_s=0.3)
    first.save(snapshot(0, 2), step=3)
    with pytest.raises(WaitedTooLong, match=r"the slices of owner 1 of 2"):
        first._pending.result(30)  # type: ignore[union-attr]
    assert Checkpoints(tmp_path).list() == [] and not list(tmp_path.iterdir())


def test_an_owner_waits_for_the_folder_of_the_first(tmp_path: Path) -> None:
    second = owner(tmp_path, 1, 2, deadline_s=0.3)
    second.save(snapshot(1, 2), step=3)
    with pytest.raises(WaitedTooLong, match="which the first owner makes"):
        second._pending.result(30)  # type: ignore[union-attr]


def test_a_lost_owner_is_not_waited_for(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path, owners=Owners(0, 2, "run", lost=lambda: True))
    first.save(snapshot(0, 2), step=3)
    with pytest.raises(WorkersLost, match=r"the slices of owner 1 of 2"):
        first._pending.result(30)  # type: ignore[union-attr]
    assert not list(tmp_path.iterdir())


def test_a_step_is_saved_again_while_its_first_save_is_put_in_place(tmp_path: Path) -> None:
    """The first owner is still at the first save when the other one begins the second."""
    first, second = owner(tmp_path, 0, 2, deadline_s=20), owner(tmp_path, 1, 2, deadline_s=20)
    (tmp_path / ".step-00000003.new-run-0").mkdir()  # what the first owner has made and has not put in place yet
    second.save(snapshot(1, 2), step=3, wait=True)
    second.save(snapshot(1, 2), step=3)
    (tmp_path / ".step-00000003.new-run-0" / "part-00001.json").unlink()  # read, and the folder becomes the checkpoint
    (tmp_path / ".step-00000003.new-run-0").rename(tmp_path / "step-00000003")
    first._step, first._again = 3, 0
    first.save(snapshot(0, 2), step=3, wait=True)
    second.close()
    assert torch.equal(Checkpoints(tmp_path).read(3).tensors["model.w"], WHOLE)


def staged(first: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    """One of two stages of a model: its other layers have no parameters here. With a step of AdamW."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1 if first else 0] = nn.Identity()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model[0 if first else 1](torch.ones(1, 3 if first else 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_stages_that_hold_different_layers_make_the_whole(tmp_path: Path) -> None:
    stages = [staged(True), staged(False)]
    with ThreadPoolExecutor() as pool:
        for number, (model, optimizer) in enumerate(stages):
            owners = Owners(number, 2, "run", writes=lambda name: name.startswith(("model.", "optim.")))
            taken = capture(model, {"main": optimizer})
            pool.submit(Checkpoints(tmp_path, owners=owners).save, taken, step=1, wait=True)
    found = Checkpoints(tmp_path).read(1)
    whole = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    again = torch.optim.AdamW(whole.parameters(), lr=0.1)
    restore(found, whole, {"main": again})
    for place, (model, optimizer) in enumerate(stages):
        for ours, theirs in zip(whole[place].parameters(), model.parameters(), strict=True):
            assert torch.equal(ours, theirs) and torch.equal(
                again.state[ours]["exp_avg"], optimizer.state[theirs]["exp_avg"]
            )
        fresh, third = staged(place == 0)
        restore(found, fresh, {"main": third}, partly=True)
        assert all(map(torch.equal, fresh.parameters(), model.parameters()))
        with pytest.raises(CheckpointError, match="groups of"):
            restore(found, fresh, {"main": third})
