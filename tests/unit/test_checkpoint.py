"""Checkpoints on disk: whole or absent, checked when read, tidied by rule, and clear about what the disk lacks."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cordee.core.errors import CheckpointError, StorageError, UsageError, WaitedTooLong
from cordee.state import checkpoint as checkpoint_module
from cordee.state import files, index, layout
from cordee.state.checkpoint import Checkpoints
from cordee.state.export import save_model
from cordee.state.naming import Snapshot
from harness import DEADLINE_S

TENSORS = "tensors-00000.safetensors"


def snapshot(value: float = 1.0, **more: torch.Tensor) -> Snapshot:
    tensors = {
        "model.w": torch.full((3, 4), value),
        "model.half": torch.full((5,), value, dtype=torch.bfloat16),
        "model.count": torch.tensor(7),
        "model.none": torch.zeros(0, 2, dtype=torch.float64),
        **more,
    }
    return Snapshot(tensors, {"aliases": {}, "note": [1, 0.1, "é"]})


def steps(checkpoints: Checkpoints) -> list[int]:
    return [step for step, _ in checkpoints.list()]


def test_round_trip(tmp_path: Path) -> None:
    kept = snapshot(0.1, **{"model.big": torch.arange(100)})
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(kept, step=12, metrics={"loss": 0.5}, wait=True)
    [(_, path)] = checkpoints.list()
    assert path.name == "step-00000012"
    assert sorted(file.name for file in path.iterdir()) == ["checkpoint.json", TENSORS]
    back = checkpoints.read(12)
    assert back.meta == kept.meta
    assert list(back.tensors) == list(kept.tensors)
    for name, tensor in kept.tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert torch.equal(back.tensors[name], tensor)


def test_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_best="-loss")
    losses = [0.5, 0.2, float("nan"), 0.9, 0.4]
    for step, loss in enumerate(losses, start=1):
        checkpoints.save(snapshot(), step=step, metrics={"loss": loss}, wait=True)
    assert steps(checkpoints) == [2, 4, 5]
    assert checkpoints.best() == tmp_path / "step-00000002"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert Checkpoints(tmp_path, keep_best="loss").best() == tmp_path / "step-00000004"


def test_the_one_just_written_stays_even_below_older_steps(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    checkpoints.save(snapshot(), step=9, wait=True)
    checkpoints.save(snapshot(), step=3, wait=True)
    assert steps(checkpoints) == [3, 9]


def test_same_step_again_replaces(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(1.0), step=5, wait=True)
    checkpoints.save(snapshot(2.0), step=5, wait=True)
    assert checkpoints.read(5).tensors["model.w"][0, 0] == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


def spoil_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "spoil", "why"),
    [
        (TENSORS, spoil_last_byte, "SHA-256"),
        (TENSORS, lambda path: os.truncate(path, 100), "has 100 bytes instead of"),
        (TENSORS, lambda path: path.unlink(), "No such file"),
        ("checkpoint.json", lambda path: path.write_text(path.read_text().replace("0.1", "0.2")), "checksum"),
        ("checkpoint.json", lambda path: os.truncate(path, 50), "damaged"),
        ("checkpoint.json", lambda path: path.unlink(), "is no checkpoint"),
    ],
)
def test_damage_is_named_and_an_intact_one_read(
    tmp_path: Path, file: str, spoil: Callable[[Path], Any], why: str
) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save(snapshot(), step=step, wait=True)
    spoil(tmp_path / "step-00000003" / file)
    with pytest.raises(CheckpointError, match=why) as caught:
        checkpoints.read(3)
    assert file in str(caught.value)
    found, (problem,) = checkpoints.read_latest()
    assert found is not None and file in str(problem)


def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(), step=1, wait=True)
    path = tmp_path / "step-00000001" / "checkpoint.json"
    body = json.loads(path.read_text())
    body.pop("sha256")
    body["files"] = {"../x": {"bytes": 1, "sha256": ""}}
    path.write_text(json.dumps({"sha256": index.seal(body), **body}))
    with pytest.raises(CheckpointError, match="not a file of this folder"):
        checkpoints.read(1)


def test_missing_step_lists_what_is_there(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(), step=4, wait=True)
    with pytest.raises(CheckpointError, match="holds the steps: 4"):
        checkpoints.read(5)
    assert Checkpoints(tmp_path / "none").read_latest() == (None, ())


def test_full_disk_is_seen_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda path: 10)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(), step=1)
    with pytest.raises(StorageError, match=r"step-00000001: No space left.*\(66 bytes needed, 10 free\)\. Free some"):
        checkpoints.close()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    checkpoints.save(snapshot(), step=2, wait=True)
    assert steps(checkpoints) == [2]


def test_disk_that_fills_while_writing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(), step=1, wait=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # the kernel refuses the write itself: EFBIG
    try:
        checkpoints.save(snapshot(**{"model.big": torch.zeros(50_000)}), step=2)
        with pytest.raises(StorageError, match=r"File too large \(200,066 bytes needed"):
            checkpoints.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_system_errors_of_the_background_reach_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(path: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(layout, "sync", fail)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(), step=1)
    with pytest.raises(StorageError, match=os.strerror(code)):
        checkpoints.save(snapshot(), step=2)
    checkpoints.close()  # told once
    assert list(tmp_path.iterdir()) == []


def test_one_save_at_a_time_and_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    under_way: list[int] = []
    real = layout.write_folder

    def slow(folder: Path, *args: Any, **more: Any) -> int:
        under_way.append(more["step"])
        assert gate.wait(DEADLINE_S)
        return real(folder, *args, **more)

    monkeypatch.setattr(checkpoint_module, "write_folder", slow)
    checkpoints = Checkpoints(tmp_path, deadline_s=0.05)
    checkpoints.save(snapshot(), step=1)
    with pytest.raises(WaitedTooLong, match="not written within"):
        checkpoints.save(snapshot(), step=2)
    assert steps(checkpoints) == []
    gate.set()
    checkpoints.deadline_s = 10
    checkpoints.save(snapshot(), step=3, wait=True)
    assert under_way == [1, 3]
    assert steps(checkpoints) == [1, 3]


# Killed before the first file, before the index, before the rename, and between the two renames of replacing a step.
KILLS = [("layout.write_tensors", 1, 2), ("layout.sync", 2, 2), ("checkpoint.put_in_place", 1, 2), ("os.rename", 2, 1)]

WRITERS = """
import json, os, signal, sys
import torch
from cordee.state import checkpoint, layout
from cordee.state.naming import Snapshot

def write_and_die(folder, where, count, step):
    checkpoints = checkpoint.Checkpoints(folder)
    module, name = where.split(".")
    owner = {"layout": layout, "checkpoint": checkpoint, "os": os}[module]
    real, calls = getattr(owner, name), []
    def die(*args, **more):
        calls.append(args)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)
    setattr(owner, name, die)
    checkpoints.save(Snapshot({"w": torch.ones(4), "v": torch.ones(4)}), step=step, wait=True)

for case in json.loads(sys.argv[1]):
    child = os.fork()  # once torch is imported: four imports would take seconds
    if child == 0:
        write_and_die(*case)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, case
"""


def test_a_killed_writer_leaves_the_older_one_whole(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(len(KILLS))]
    for folder in folders:
        Checkpoints(folder).save(snapshot(), step=1, wait=True)
    cases = json.dumps([[str(folder), *case] for folder, case in zip(folders, KILLS, strict=True)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITERS, cases]
    ended = subprocess.run(command, env=environment, timeout=DEADLINE_S, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for folder in folders:
        assert [path for path in folder.iterdir() if path.name.startswith(".")], "nothing was under way"
        again = Checkpoints(folder)
        assert [path.name for path in folder.iterdir()] == ["step-00000001"]
        assert again.read_latest()[0] is not None
        assert torch.equal(again.read(1).tensors["model.w"], snapshot().tensors["model.w"])


def test_a_living_writer_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, gate = threading.Event(), threading.Event()
    real = layout.write_folder

    def slow(folder: Path, *args: Any, **more: Any) -> int:
        inside.set()
        assert gate.wait(DEADLINE_S)
        return real(folder, *args, **more)

    monkeypatch.setattr(checkpoint_module, "write_folder", slow)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(), step=1)
    assert inside.wait(DEADLINE_S)
    Checkpoints(tmp_path)
    gate.set()
    checkpoints.close()
    assert steps(checkpoints) == [1]


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep_last="):
        Checkpoints(tmp_path, keep_last=0)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_are_readable_by_whom_the_umask_allows(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        Checkpoints(tmp_path).save(snapshot(), step=1, wait=True)
        save_model(tmp_path / "model.safetensors", snapshot())
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"} and len(files) == 3
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {oct(mode)}
