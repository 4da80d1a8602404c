"""The index of a checkpoint: `checkpoint.json`, sealed by a checksum. Nothing here loads torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cordee.core.damage import DAMAGE
from cordee.core.errors import CheckpointError

FORMAT = 1
INDEX = "checkpoint.json"
STEP = re.compile(r"step-(\d{8,})")


def folder_name(step: int) -> str:
    """What the checkpoint of a step is called."""
    return f"step-{step:08d}"


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """All checkpoints in a folder as (step, folder), oldest step first; nothing of them is read."""
    if not folder.is_dir():
        return []
    found = ((STEP.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match.group(1)), path) for match, path in found if match)


def newest_sealed(folder: Path) -> int | None:
    """The step of the newest checkpoint whose index is intact and whose files have their sizes; None if there is none.

    What the files hold is not read, so this takes no time; a flipped bit in them is found when they are loaded.
    """
    for step, path in reversed(list_checkpoints(folder)):
        try:
            check_sizes(path, read_index(path))
            return step
        except CheckpointError:
            continue
    return None


def read_index(folder: Path) -> dict[str, Any]:
    """Read and check `checkpoint.json`."""
    path = folder / INDEX
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} has format {body.get('format')!r}; this version of Cordée reads format {FORMAT}. "
                "Read it with the version that wrote it."
            )
        if body.pop("sha256", None) != seal(body):
            raise damaged(path, "its checksum does not match its content")
        return {**body, "step": int(body["step"]), "metrics": dict(body["metrics"])}
    except FileNotFoundError as problem:
        raise CheckpointError(
            f"{path} is not there: {folder} is no checkpoint. Name a folder that holds one."
        ) from problem
    except (OSError, *DAMAGE) as problem:
        raise damaged(path, str(problem)) from problem


def check_sizes(folder: Path, index: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of which a file is missing or cut short."""
    try:
        for name, entry in index["files"].items():
            check_size(folder, name, entry)
    except DAMAGE as problem:
        raise damaged(folder / INDEX, f"it does not fit its files ({problem})") from problem


def check_size(folder: Path, name: str, entry: Mapping[str, Any]) -> Path:
    """The path of a file that the index names; refused if it is not there, or not of the size that was written."""
    path = folder / name
    if path.name != name:
        raise damaged(folder / INDEX, f"it names {name!r}, which is not a file of this folder")
    try:
        size = path.stat().st_size
    except OSError as problem:
        raise damaged(path, problem.strerror or str(problem)) from problem
    if size != entry["bytes"]:
        raise damaged(path, f"it has {size:,} bytes instead of {entry['bytes']:,}")
    return path


def seal(body: Mapping[str, Any]) -> str:
    """The checksum of an index, over all of it but this checksum itself."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def damaged(path: Path, why: str) -> CheckpointError:
    """The error for a file that is not what was written."""
    return CheckpointError(f"{path} is damaged: {why}", next_step="resume from another checkpoint")


def join(
    first: Mapping[str, Any], others: Iterable[Mapping[str, Any]], *, step: int, metrics: Mapping[str, float]
) -> dict[str, Any]:
    """The content of an index, of what its owners say of their parts: `meta`, `files` and `tensors`, as they come."""
    meta = first["meta"]
    files, tensors = dict(first["files"]), dict(first["tensors"])
    for more in others:
        meta = merge_meta(meta, more["meta"])
        files.update(more["files"])
        for name, entry in more["tensors"].items():
            slices = [*tensors[name]["slices"], *entry["slices"]] if name in tensors else entry["slices"]
            tensors[name] = {**tensors.get(name, entry), "slices": slices}
    body = {
        "format": FORMAT,
        "step": step,
        "time": time.time(),
        # A NaN has no place in JSON, and no use as "best".
        "metrics": {name: float(value) for name, value in metrics.items() if math.isfinite(value)},
        "meta": meta,
        "files": files,
        "tensors": tensors,
    }
    found: dict[str, Any] = json.loads(json.dumps(body, allow_nan=False))  # as a reader gets it: both seal the same
    return found


def merge_meta(meta: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept beside the tensors, of two owners that hold different parts of a model; the first one counts."""
    merged = {**meta, **{name: {**more.get(name, {}), **meta.get(name, {})} for name in ("aliases", "model")}}
    merged["optimizers"] = {
        key: _merge_optimizer(one, more["optimizers"][key]) if key in more.get("optimizers", {}) else one
        for key, one in meta.get("optimizers", {}).items()
    }
    return merged


def _merge_optimizer(kept: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    groups = [
        {**group, "params": list(dict.fromkeys([*group["params"], *other["params"]]))}
        for group, other in zip(kept["groups"], more["groups"], strict=True)
    ]
    return {**kept, "groups": groups, "state": {**more["state"], **kept["state"]}}
