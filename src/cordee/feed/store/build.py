"""Builds a store: its spans in several processes, in any order, and the manifest last."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from cordee.core import interrupts
from cordee.core.cgroup import cpu_quota
from cordee.core.damage import write_whole
from cordee.core.errors import DataError
from cordee.core.locks import take_lock
from cordee.core.machine import usable_cores
from cordee.feed.sources.seam import LetsGo
from cordee.feed.store.cutting import Span, key_of
from cordee.feed.store.layout import BUILDING, FORM, LOCK, MANIFEST, SETS, Manifest, kinds_of
from cordee.feed.store.recipe import Recipe
from cordee.feed.store.span import Cut, Done, SpanBuilder, cuts_of, forget_span, whole
from cordee.feed.store.statistics import Summary, merged
from cordee.feed.store.write import storage_errors
from cordee.feed.tasks import run_tasks
from cordee.feed.threads import MOST

SMALL_BYTES = 8 * 2**20
"""Of so little, other processes would take longer to start than the work takes."""
LARGE_BYTES = 2 * 2**30
"""From here on processes on many cores win more over a few threads than they take to start."""
LOCK_WAIT_S = 5.0
"""A builder that was killed may leave processes that still end."""
_RECIPE = "recipe.json"
_SHARD = re.compile(rf"({'|'.join(SETS)})-\d{{6}}-\d{{3,}}(\.part)?")
_RECORD = re.compile(rf"\.?({re.escape(_RECIPE)}|\d{{6}}-\d{{3,}}\.json)(\.\d+)?")
_OURS = re.compile(rf"{_SHARD.pattern}|{BUILDING}|{re.escape(LOCK)}|\.{re.escape(MANIFEST)}\.\d+")


@dataclass(frozen=True)
class Progress:
    """How far a build has come."""

    rows: int = 0
    nbytes: int = 0
    """Of rows that were made."""
    read: int = 0
    """Bytes of files that are finished."""
    total: int = 0
    """Bytes of all files."""
    seconds: float = 0.0


Tell = Callable[[Progress], None]


def build(
    recipe: Recipe,
    out: Path,
    *,
    processes: int | None = None,
    tell: Tell | None = None,
    replace: bool = False,
    durable: bool = True,
) -> Manifest:
    """Build the store of a recipe in the folder `out`, or go on with a build of it that was ended there.

    Where `out` is a store of the same recipe already, nothing is done; another store there is replaced if that was
    asked for. `durable` waits until all of it has reached the disk.
    """
    if (found := _found(out, recipe.key)) and not (out / BUILDING).exists():
        return _described(out, found, recipe)
    recipe.schema  # noqa: B018  what cannot be read leaves no folder behind
    with storage_errors(out, 0):
        if not found:
            _check_folder(out, replace)
        out.mkdir(parents=True, exist_ok=True)
        with _held(out) as lock:
            if found := _found(out, recipe.key):  # another process has just built it
                shutil.rmtree(out / BUILDING, ignore_errors=True)
                return found
            spans = recipe.spans
            _prepare(out, recipe, spans)
            _run(recipe, out, spans, processes, tell, lock)
            return _finish(out, recipe, spans, durable)


def processes_for(recipe: Recipe, tasks: int) -> int:
    """How many processes are worth their start; 0: the calling one does it."""
    if recipe.reader.in_process or recipe.nbytes < SMALL_BYTES or tasks < 2:
        return 0
    cores = _cores()
    return min(cores, tasks) if cores > 1 else 0


def spread_for(recipe: Recipe, tasks: int, processes: int | None = None) -> tuple[int, int]:
    """How many processes build it, and how many threads of this one do where there are none."""
    threads = 1
    if isinstance(recipe.reader, LetsGo) and not recipe.steps:  # steps may be functions of the user's
        threads = max(1, min(MOST, _cores(), tasks))
        if processes is None and (_cores() <= MOST or recipe.nbytes < LARGE_BYTES):
            processes = 0
    if processes is None or recipe.reader.in_process:
        processes = processes_for(recipe, tasks)
    return processes, 1 if processes else threads


def _cores() -> int:
    quota = cpu_quota()
    return len(usable_cores()) if quota is None else min(len(usable_cores()), math.ceil(quota))


def shown(progress: Progress) -> str:
    """In words: rows, bytes, rate, and how much of the files is done."""
    rate = progress.nbytes / progress.seconds / 2**20 if progress.seconds > 0 else 0.0
    part = f", {100 * progress.read / progress.total:.0f}% of the files" if progress.total else ""
    return f"{progress.rows:,} rows, {progress.nbytes / 2**20:,.0f} MiB, {rate:,.0f} MiB/s{part}"


def _run(recipe: Recipe, out: Path, spans: Sequence[Span], processes: int | None, tell: Tell | None, lock: int) -> None:
    left = [span for span in spans if not ((cuts := cuts_of(out, span.number)) and cuts[-1].done)]
    began, progress = time.monotonic(), Progress(total=recipe.nbytes)
    progress = Progress(read=recipe.nbytes - sum(sum(span.sizes) for span in left))

    def hear(done: Done) -> None:
        nonlocal progress
        interrupts.check()
        rows, nbytes = progress.rows + done.rows, progress.nbytes + done.nbytes
        seconds = time.monotonic() - began
        progress = Progress(rows, nbytes, progress.read + done.read, recipe.nbytes, seconds)
        if tell is not None:
            tell(progress)

    if not left:
        return
    work = SpanBuilder(out.absolute(), recipe.maker, recipe.schema, recipe.shard_bytes)
    processes, threads = spread_for(recipe, len(left), processes)
    for _ in run_tasks(work, left, processes=processes, threads=threads, notice=hear, keep_open=[lock]):
        pass


def _finish(out: Path, recipe: Recipe, spans: Sequence[Span], durable: bool) -> Manifest:
    """Put the manifest together from the records of all spans, and write it."""
    sets: dict[str, list[Any]] = {name: [] for name in SETS}
    summaries: list[dict[str, Summary]] = []
    skipped = recipe.earlier
    for span in spans:
        cuts = cuts_of(out, span.number)
        for cut in cuts:
            for name, shard in cut.shards.items():
                sets[name].append(shard)
        last: Cut = cuts[-1]
        summaries.append(last.statistics)
        skipped = skipped.plus(last.skipped)
    if not any(sets.values()):
        left_out = f"; {skipped.rows:,} rows could not be read, such as {skipped.faults[0]}" if skipped.rows else ""
        raise DataError(
            f"there are no rows: {len(recipe.places)} files gave none{left_out}. Check the files, and steps that leave "
            "rows out"
        )
    manifest = Manifest(
        FORM,
        recipe.key,
        kinds_of(recipe.schema),
        {name: tuple(shards) for name, shards in sets.items() if shards},
        {name: reduce(merged, [one[name] for one in summaries]).describe() for name in recipe.schema},
        skipped.rows,
        skipped.faults,
        skipped.files,
        recipe.features,
    )
    with storage_errors(out / MANIFEST, 0):
        if durable:
            _flush(out)
        write_whole(out / MANIFEST, msgspec.json.encode(manifest).decode())
        if durable:
            _flush(out)
        shutil.rmtree(out / BUILDING, ignore_errors=True)
    return manifest


def _described(out: Path, found: Manifest, recipe: Recipe) -> Manifest:
    """The manifest of a store that is there already, with the features of this recipe: the rows are the same."""
    if recipe.features is None or msgspec.json.encode(recipe.features) == msgspec.json.encode(found.features):
        return found
    manifest = msgspec.structs.replace(found, features=recipe.features)
    with storage_errors(out / MANIFEST, 0):
        write_whole(out / MANIFEST, msgspec.json.encode(manifest).decode())
    return manifest


def _check_folder(out: Path, replace: bool) -> None:
    """Refuse a folder that holds anything but a store, or a part of one; and a store that is to stay."""
    if out.exists() and not out.is_dir():
        raise DataError(f"{out.absolute()} is a file: a folder was expected, or a name that is not taken")
    names = {one.name for one in out.iterdir()} if out.is_dir() else set()
    is_store = manifest_of(out) is not None
    if is_store and not replace:
        raise DataError(
            f"{out.absolute()} is a store already, of other files or other steps: choose another folder, or replace it "
            "(--replace, replace=True)"
        )
    foreign = [] if is_store else [name for name in names if not _OURS.fullmatch(name) or not _is_ours(out / name)]
    if foreign:
        some = ", ".join(sorted(foreign)[:3])
        raise DataError(
            f"{out.absolute()} is no store, and not empty (it holds {some}): choose a new folder, or an empty one"
        )


def _is_ours(path: Path) -> bool:
    """Whether the folder of a build's records holds nothing else."""
    return path.name != BUILDING or all(_RECORD.fullmatch(one.name) for one in path.iterdir())


@contextlib.contextmanager
def _held(out: Path) -> Iterator[int]:
    """The lock of the folder, so that one process at a time builds there."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while (lock := take_lock(out / LOCK)) is None:
        if time.monotonic() > deadline:
            who = " ".join((out / LOCK).read_text(encoding="utf-8", errors="replace").split())
            raise DataError(
                f"{out.absolute()} is in use: {who or 'another process'} builds there, or has it open. Wait until it "
                "has ended, or choose another folder"
            )
        interrupts.check()
        time.sleep(0.05)
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield lock
        os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def manifest_of(out: Path) -> Manifest | None:
    """The manifest in a folder; None if there is none of ours."""
    try:
        manifest = msgspec.json.decode((out / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return manifest if manifest.form == FORM else None


def _found(out: Path, key: str) -> Manifest | None:
    """The manifest of a store with this key, if it is there and whole."""
    manifest = manifest_of(out)
    return manifest if manifest is not None and manifest.key == key else None


def _prepare(out: Path, recipe: Recipe, spans: Sequence[Span]) -> None:
    """Keep what an earlier build of the same recipe has finished; remove everything else."""
    record, key = out / BUILDING / _RECIPE, f"{recipe.key} {key_of(spans)}"
    try:
        same = msgspec.json.decode(record.read_bytes(), type=str) == key
    except (OSError, msgspec.MsgspecError):
        same = False
    kept: set[str] = set()
    if same:
        for span in spans:
            cuts = cuts_of(out, span.number)
            if whole(out, cuts):
                kept |= {shard.folder for cut in cuts for shard in cut.shards.values()}
            else:  # the power failed
                forget_span(out, span.number, cuts)
    (out / MANIFEST).unlink(missing_ok=True)
    for one in out.iterdir():
        if one.name.startswith(f".{MANIFEST}."):  # half of one
            one.unlink()
        if one.name not in kept and _SHARD.fullmatch(one.name):
            shutil.rmtree(one)
    if not same:
        shutil.rmtree(out / BUILDING, ignore_errors=True)
        (out / BUILDING).mkdir()
        write_whole(record, msgspec.json.encode(key).decode())


def _flush(out: Path) -> None:
    """Wait until the file system has written all that it was given; one call, whatever the number of files."""
    handle = os.open(out, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(out))
    finally:
        os.close(handle)
