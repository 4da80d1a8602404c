"""Files that were changed, by accident or on purpose: read as before, or refused by an error of ours, never more."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

from blocks import write_store
from cordee.cli.report import report
from cordee.core.errors import CheckpointError, CordeeError, DataError, PlanError
from cordee.core.plan import Plan
from cordee.feed.store.layout import MANIFEST
from cordee.feed.store.opened import open_store
from cordee.feed.store.write import npy_head
from cordee.state.checkpoint import Checkpoints
from cordee.state.export import PROGRAM, WEIGHTS, save_model, save_program, trace_program
from cordee.state.index import INDEX, seal
from cordee.state.load import load
from cordee.state.naming import capture, restore
from records import end, epoch, event, start, step, times, usage, write
from stores import columns_of

ODD = [
    None, True, -1, 0, 1.5, 10**400, -(10**18), 1e308, "", "x", "\x1b[31m", "../../x", "a\0b", "9" * 5000, [], [[]], {},
    {"$tensor": "x"}, {"$float": []}, {"$tuple": 3}, {"$items": [1]}, {"$ref": 1}, {"$dict": [[[], 1]]},
    [None], [10**12],
]  # fmt: skip
"""What may stand where something else did."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a structure."""
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*path, key))


def mutated(value: Any, draw: random.Random) -> Any:
    """A copy with one part replaced, removed, doubled, renamed or moved."""
    value = copy.deepcopy(value)
    path = draw.choice([one for one in places(value) if one] or [()])
    if not path:
        return draw.choice(ODD)
    *outer, last = path
    holder = value
    for key in outer:
        holder = holder[key]
    act = draw.choice(["odd", "odd", "odd", "remove", "wrap", "rename"])
    if act == "remove":
        del holder[last]
    elif act == "wrap":
        holder[last] = draw.choice([[holder[last]], {"x": holder[last]}, str(holder[last])])
    elif act == "rename" and isinstance(holder, dict):
        holder[draw.choice(["", "x", "$tensor", "$float", "a.b"])] = holder.pop(last)
    else:
        holder[last] = draw.choice(ODD)
    return value


def spoiled(raw: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, cut off or added."""
    at = draw.randrange(len(raw))
    changed = bytes([draw.randrange(256)])
    return draw.choice([raw[:at], raw[:at] + changed + raw[at + 1 :], raw[:at] + b"\xff\x00" + raw[at:]])


def only_ours(read: Callable[[], Any], what: object, counts: dict[str, int]) -> None:
    """It works, or ends with an error of ours that is one message."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            read()
    except CordeeError as error:
        assert str(error) and len(str(error)) < 3000
        counts["refused"] += 1
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__} from {str(what)[:500]}") from error
    else:
        counts["read"] += 1


@pytest.fixture
def counts() -> Iterator[dict[str, int]]:
    """How many files were read and refused: both happen, or the test does not try what it says."""
    found = {"read": 0, "refused": 0}
    yield found
    assert min(found.values()) > 30, found


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def test_checkpoints(tmp_path: Path, counts: dict[str, int]) -> None:
    """Sealed anew, so that only what they say is wrong; then with bytes of any file changed."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    checkpoints = Checkpoints(tmp_path)
    for number in (1, 2):
        checkpoints.save(capture(model, {"main": optimizer}), step=number, metrics={"loss": 1.0}, wait=True)
    folder = checkpoints.list()[-1][1]
    body = json.loads((folder / INDEX).read_text())
    del body["sha256"]
    draw = random.Random(0)

    def resume() -> None:
        found, problems = checkpoints.read_latest()
        assert found is not None, "there is an intact one"
        fresh = net()
        restore(found, fresh, {"main": torch.optim.AdamW(fresh.parameters())})
        if problems:
            raise problems[0]

    for _ in range(60):
        crafted = mutated(body, draw)
        if isinstance(crafted, dict):
            crafted["sha256"] = seal(crafted)
        (folder / INDEX).write_text(json.dumps(crafted))
        only_ours(resume, crafted, counts)
        only_ours(checkpoints.best, crafted, counts)
    (folder / INDEX).write_text("[" * 100_000)
    only_ours(resume, "deep", counts)
    (folder / INDEX).write_text(json.dumps({"sha256": seal(body), **body}))
    for file in list(folder.iterdir()):
        whole = file.read_bytes()
        for _ in range(15):
            file.write_bytes(spoiled(whole, draw))
            only_ours(resume, file, counts)
        file.write_bytes(whole)
    resume()


def test_stores(tmp_path: Path, counts: dict[str, int]) -> None:
    """With other words in the manifest, and with bytes of any file changed: no page and no address is touched."""
    out = tmp_path / "store"
    given = columns_of(np.arange(30))
    write_store(out, given, 8, train=20, test=10)
    whole = json.loads((out / MANIFEST).read_text())
    draw = random.Random(0)

    def read() -> None:
        for source in open_store(out).sets.values():
            source.rows(np.arange(len(source)))

    for _ in range(250):
        crafted = mutated(whole, draw)
        (out / MANIFEST).write_text(json.dumps(crafted))
        only_ours(read, crafted, counts)
    (out / MANIFEST).write_text("[" * 100_000)
    only_ours(read, "deep", counts)
    (out / MANIFEST).write_text(json.dumps(whole))
    for file in sorted(out.glob("*/*.npy")):
        raw = file.read_bytes()
        for _ in range(5):
            file.write_bytes(spoiled(raw, draw))
            only_ours(read, file, counts)
        file.write_bytes(raw)
    read()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda one: one["columns"]["id"].update(dtype="object"), "no type of numbers"),
        (lambda one: one["columns"]["id"].update(dtype="O"), "no type of numbers"),
        (lambda one: one["columns"]["id"].update(dtype="S8"), "no type of numbers"),
        (lambda one: one["columns"]["id"].update(dtype="i4,O"), "no type of numbers"),
        (lambda one: one["columns"]["id"].update(dtype=">i8"), "no type of numbers"),
        (lambda one: one["columns"]["id"].update(dtype="text"), "no type of numbers"),
        (lambda one: one["columns"]["tokens"].update(dtype="O"), "no type of numbers"),
        (lambda one: one["columns"]["id"].update(shape=[-1]), "impossible shape"),
        (lambda one: one["columns"]["id"].update(shape=[2**40, 2**40]), "impossible shape"),
        (lambda one: one["sets"]["train"][0].update(rows=2**70), "without rows"),
        (lambda one: one["sets"]["train"][0].update(rows=100_000), "does not hold 100,000 rows"),
        (lambda one: one["sets"]["train"][0].update(rows=9), "does not hold 9 rows"),
        (lambda one: one["sets"].update(train=[]), "without rows"),
        (lambda one: one["sets"]["train"][0].update(folder="../other"), "no file or folder in it"),
        (lambda one: one["sets"]["train"][0].update(folder="/etc"), "no file or folder in it"),
        (lambda one: one["sets"]["train"][0].update(folder=".."), "no file or folder in it"),
        (lambda one: one["sets"]["train"][0]["files"][0].update(name="../../x"), "no file or folder in it"),
        (lambda one: one["sets"]["train"][0]["files"].pop(0), "has no id"),
        (lambda one: one["sets"].update(other=one["sets"].pop("test")), "sets that are not"),
    ],
)
def test_a_store_whose_manifest_lies(tmp_path: Path, change: Callable[[Any], Any], error: str) -> None:
    write_store(tmp_path / "store", columns_of(np.arange(30)), 8, train=20, test=10)
    manifest = json.loads((tmp_path / "store" / MANIFEST).read_text())
    change(manifest)
    (tmp_path / "store" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=error):
        open_store(tmp_path / "store")


def test_a_store_of_objects_whose_files_agree(tmp_path: Path) -> None:
    """NumPy would take the numbers in them for addresses."""
    write_store(tmp_path / "store", {"id": np.arange(30)}, 30)
    (file,) = (tmp_path / "store").glob("*/id.npy")
    file.write_bytes(npy_head(np.dtype(object), (30,)) + file.read_bytes()[4096:])
    path = tmp_path / "store" / MANIFEST
    path.write_text(path.read_text().replace('"int64"', '"object"'))
    with pytest.raises(DataError, match="no type of numbers"):
        open_store(tmp_path / "store")


def test_entries_that_begin_outside_of_their_file(tmp_path: Path) -> None:
    write_store(tmp_path / "store", columns_of(np.arange(30)), 30)
    (file,) = (tmp_path / "store").glob("*/tokens.0.npy")
    raw = bytearray(file.read_bytes())
    raw[4096 + 8 : 4096 + 16] = (10**9).to_bytes(8, "little")
    file.write_bytes(raw)
    with pytest.raises(DataError, match="where entries begin"):
        open_store(tmp_path / "store").sets["train"].rows(np.arange(3))


def test_plans(tmp_path: Path, counts: dict[str, int]) -> None:
    draw = random.Random(0)
    file = tmp_path / "plan.yaml"
    texts = [
        "a: &a [*a]",
        "proportions: &a [*a]",
        "[" * 5000,
        "{" * 5000,
        "? [1]\n: 2",
        "bucket_mb: " + "9" * 400,
        "\0",
    ]
    texts += ["a: !!python/object:os.system x", "share: !!binary x", "accumulate: 2026-01-01", "accumulate: .nan"]
    texts += ["bucket_mb: " + "9" * 400, "accumulate: " + "9" * 5000, "- 1", ""]
    texts += [yaml.safe_dump(mutated(Plan().to_dict(), draw)) for _ in range(150)]
    for text in texts:
        file.write_text(text)
        only_ours(lambda: Plan.parse(str(file)), text, counts)
    whole = Plan().to_yaml().encode()
    for _ in range(50):
        file.write_bytes(spoiled(whole, draw))
        only_ours(lambda: Plan.parse(str(file)), file.read_bytes(), counts)
    with pytest.raises(PlanError, match="expected a number"):
        Plan.from_dict({"bucket_mb": 10**400})


def test_programs(tmp_path: Path, counts: dict[str, int]) -> None:
    model = net().eval()
    save_model(tmp_path / WEIGHTS, capture(model))
    save_program(tmp_path / PROGRAM, model, trace_program(model, (torch.ones(2, 4),)))
    path = tmp_path / PROGRAM
    whole, weights = path.read_bytes(), (tmp_path / WEIGHTS).read_bytes()
    constants = load_file(path)
    header = json.loads(_metadata(path)["program"])
    draw = random.Random(0)

    def use() -> None:
        load(tmp_path)

    for _ in range(120):
        crafted = mutated(header, draw)
        save_file(constants, path, metadata={"program": json.dumps(crafted)})
        only_ours(use, crafted, counts)
    for text in ("[" * 100_000, "", "NaN"):
        save_file(constants, path, metadata={"program": text})
        only_ours(use, text[:10], counts)
    for file, content in ((path, whole), (tmp_path / WEIGHTS, weights)):
        for _ in range(60):
            file.write_bytes(spoiled(content, draw))
            only_ours(use, file, counts)
        file.write_bytes(content)
    assert torch.equal(load(tmp_path)(torch.ones(2, 4)), model(torch.ones(2, 4)))


def _metadata(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        return dict(file.metadata())


def test_records(tmp_path: Path, counts: dict[str, int]) -> None:
    """As `cordee report` reads them: tables, JSON, trace, page."""
    events = [
        *start(0.0, 2),
        *(step(2.0 + number / 10, number) for number in range(1, 6)),
        times(2.6, 0, 0, [2.1, 2.2], (0.1, 7.0, 3.0, 0.0), 6),
        usage(2.6, 0, 1.0),
        epoch(2.7, 0, 5, {"accuracy": 0.5}),
        event("failure", 2.8, worker=1, host="b", reason="killed", left=1),
        event("regroup", 2.8, generation=2, workers=[0], ms=3.0),
        event("warning", 2.8, message="so"),
        event("links", 2.8, links=[["a", "b", 1.0, 2.0]]),
        event("checkpoint", 2.9, step=5, ms=1.0),
        event(
            "result",
            2.9,
            result={
                "steps": 5,
                "validation": {"accuracy": 0.5},
                "order_sha256": "x",
                "samples_lost": 0,
                "samples_repeated": 0,
            },
        ),
        end(3.0),
    ]
    run = {"target": "job.py", "plan": "sync=allreduce", "workers": 2, "versions": {"torch": "2"}, "job": {"name": "x"}}
    draw = random.Random(0)
    for number in range(120):
        crafted = mutated({"events": events, "run": run}, draw)
        folder = tmp_path / str(number)
        about, lines = crafted.get("run"), crafted.get("events")
        write(folder, lines if isinstance(lines, list) else [lines])
        (folder / "run.json").write_text(json.dumps(about))
        only_ours(lambda folder=folder: report(folder, False, folder / "trace", None, None), crafted, counts)
        only_ours(lambda folder=folder: report(folder, True, None, None, None), crafted, counts)
    write(tmp_path / "whole", events, **run)
    whole = (tmp_path / "whole" / "events.jsonl").read_bytes()
    odd = [
        b"[" * 100_000,
        b'{"event":"step","time":NaN}',
        b"\xff",
        b"3",
        b'{"event":[],"time":1}',
        b'{"event":"step","time":1}',
    ]
    for text in odd:
        (tmp_path / "whole" / "events.jsonl").write_bytes(whole + text + b"\n")
        only_ours(lambda: report(tmp_path / "whole", True, None, None, None), text[:20], counts)


def test_a_checkpoint_that_cannot_be_restored_is_a_clean_error() -> None:
    model = net()
    taken = capture(model, {"main": torch.optim.SGD(model.parameters(), lr=0.1)})
    taken.meta["optimizers"]["main"]["groups"] = 3
    with pytest.raises(CheckpointError, match="does not fit the job, or is damaged"):
        restore(taken, model, {"main": torch.optim.SGD(model.parameters(), lr=0.1)})
